"""HTML and SVG as trees of elements: text is escaped where it is written out, so that no text can become markup."""

import copy
from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str | None
# Control characters are drawn as their pictures; what XML and HTML cannot hold, as the replacement character.
_UNSAFE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_UNSAFE |= dict.fromkeys((*range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), 0xFFFD)
SVG_NAMESPACE = "http://www.w3.org/2000/svg"
MARGIN = 12  # around a figure that is a file of its own


def node(tag: str, *children: Child, **attributes: object) -> Element:
    """An element. `class_` is class, `font_size` is font-size; True is a bare attribute, None and False are none."""
    element = Element(
        tag, {_name(name): _value(v) for name, v in attributes.items() if v is not None and v is not False}
    )
    return append(element, children)


def append(element: Element, children: Iterable[Child]) -> Element:
    """The element, with more children; None is skipped."""
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif child is not None:
            text = clean(child)
            if len(element):
                element[-1].tail = (element[-1].tail or "") + text
            else:
                element.text = (element.text or "") + text
    return element


def clean(text: str) -> str:
    """The text with nothing in it that a browser would not show."""
    return text.translate(_UNSAFE)


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def to_html(element: Element) -> str:
    """HTML; the content of script and style elements is written as it is."""
    return ElementTree.tostring(element, encoding="unicode", method="html")


def to_svg(element: Element, style: str) -> str:
    """A figure as a file of its own: with namespace and style, without links, which belong to the page."""
    root = copy.deepcopy(element)
    x, y, width, height = (float(part) for part in element.attrib["viewBox"].split())
    left, top, width, height = x - MARGIN, y - MARGIN, width + 2 * MARGIN, height + 2 * MARGIN
    root.attrib |= {"xmlns": SVG_NAMESPACE, "viewBox": f"{left:g} {top:g} {width:g} {height:g}"}
    root.attrib |= {"width": f"{2 * width:g}", "height": f"{2 * height:g}"}
    root.insert(0, node("style", style))
    for link in root.iter("a"):
        link.tag, link.attrib = "g", {}
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _name(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _value(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return "" if value is True else clean(str(value))
