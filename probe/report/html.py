"""HTML and SVG elements: `node` makes one, `to_html` writes it out.

Text is escaped when it is written out, so that no text of a model can become markup.
"""

from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from replay_pools.visible import visible as clean

Child = Element | str | None


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


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def to_html(element: Element) -> str:
    """HTML; the content of script and style elements is written as it is."""
    return ElementTree.tostring(element, encoding="unicode", method="html")


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return "" if value is True else clean(str(value))
