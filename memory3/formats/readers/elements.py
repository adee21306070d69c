"""Names in XML without their namespaces, as readers of office files, books and slides compare them."""

from __future__ import annotations

from xml.etree.ElementTree import Element


def tag_of(element: Element) -> str:
    """The name of an element; "" for a comment or an instruction."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute_of(element: Element, name: str) -> str:
    """The value of an attribute; "" without one."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")
