"""HTML and SVG elements: `node` makes one, `to_html` and `to_svg` write it out.

Text is escaped when it is written out, so that no text of a model can become markup.
"""

import copy
from collections.abc import Iterable
from functools import cache
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from replay_pools.visible import is_invisible

Child = Element | str | None
SVG_NAMESPACE = "http://www.w3.org/2000/svg"
MARGIN = 12  # around a figure that is a file of its own


def node(tag: str, *children: Child, **attributes: object) -> Element:
    """An element: `node("p", "text", class_="soft")` is `<p class="soft">text</p>`.

    Args:
        tag: of HTML or SVG.
        children: elements and texts, in order; None is skipped.
        attributes: a trailing underscore is dropped and the others become hyphens (`class_`, `font_size`). True is an
            attribute without a value; None and False leave it out.
    """
    written = {}
    for name, value in attributes.items():
        if value is not None and value is not False:
            written[name.removesuffix("_").replace("_", "-")] = _attribute(value)
    return append(Element(tag, written), children)


def append(element: Element, children: Iterable[Child]) -> Element:
    """The element, with more children; None is skipped."""
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif child is not None:
            # ElementTree keeps a text that follows an element in the `tail` of that element.
            text = clean(child)
            if len(element):
                element[-1].tail = (element[-1].tail or "") + text
            else:
                element.text = (element.text or "") + text
    return element


def clean(text: str) -> str:
    """The text with marks such as [U+202E] in the place of characters that a browser would obey, or not show.

    It may be longer than before: who knows lengths of its parts has to take those of the clean parts.
    """
    if text.isprintable():
        return text
    return "".join(_mark(character) for character in text)


@cache  # a page has many texts and few characters
def _mark(character: str) -> str:
    # XML cannot hold U+FFFE and U+FFFF, which are no characters at all.
    if character in "\t\n" or not (is_invisible(character) or character in "\ufffe\uffff"):
        return character
    return f"[U+{ord(character):04X}]"


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def to_html(element: Element) -> str:
    """HTML; the content of script and style elements is written as it is."""
    return ElementTree.tostring(element, encoding="unicode", method="html")


def to_svg(element: Element, style: str) -> str:
    """A figure as a file of its own: with namespace and style, without links, which belong to the page."""
    root = copy.deepcopy(element)  # the page holds the same element
    x, y, width, height = (float(part) for part in element.attrib["viewBox"].split())
    left, top, width, height = x - MARGIN, y - MARGIN, width + 2 * MARGIN, height + 2 * MARGIN
    root.attrib |= {"xmlns": SVG_NAMESPACE, "viewBox": f"{left:g} {top:g} {width:g} {height:g}"}
    root.attrib |= {"width": f"{2 * width:g}", "height": f"{2 * height:g}"}
    root.insert(0, node("style", style))
    for link in root.iter("a"):
        link.tag, link.attrib = "g", {}
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return "" if value is True else clean(str(value))
