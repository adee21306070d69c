"""Formulas of Word and PowerPoint on one line, `E=mc²` or `(a+b)/2`: ECMA-376, part 1, 22.1.

The converter sets those of Word before their paragraph, and leaves out those of PowerPoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from memory3.formats.readers.elements import attribute_of, tag_of
from memory3.formats.readers.markup.typography import raised, words

_PREFIX = re.compile(r"[<\s/]([\w.-]+):[\w-]")
_SIMPLE = re.compile(r"\w*|[^\s\w]|\([^()]*\)")
_SCRIPT = re.compile(r"[_^]\w+\Z")
_DELETED = "del"


def formula_text(xml: str) -> str:
    """The words of an element that holds formulas; names of its namespaces may be declared outside of it."""
    names = "".join(f' xmlns:{name}="{name}"' for name in sorted({*_PREFIX.findall(xml)} - {"xml", "xmlns"}))
    return words(_text(ElementTree.fromstring(f"<formula{names}>{xml}</formula>")))


def _text(element: Element) -> str:
    parts = {tag_of(part): _text(part) for part in element if tag_of(part) in ("e", "num", "den", "sub", "sup", "deg")}
    base, below, above = (parts.get(name, "") for name in ("e", "sub", "sup"))
    script = (f"_{_group(below)}" if below else "") + (_above(above) if above else "")
    match tag_of(element):
        case "t":
            return element.text or ""
        case "f":
            bar = "¦" if _sign(element, "type", "") == "noBar" else "/"
            return f"{_group(parts.get('num', ''))}{bar}{_group(parts.get('den', ''))}"
        case "sSup" | "sSub" | "sSubSup":
            return _group(base) + script
        case "sPre":
            return script + _group(base)
        case "rad":
            return f"{_above(parts['deg']) if parts.get('deg') else ''}√{_group(base)}"
        case "nary":
            return f"{_sign(element, 'chr', '∫')}{script} {base}"
        case "d":
            inside = _sign(element, "sepChr", "|").join(_each(element, "e"))
            return _sign(element, "begChr", "(") + inside + _sign(element, "endChr", ")")
        case "m":
            return "; ".join(", ".join(_each(row, "e")) for row in element if tag_of(row) == "mr")
        case "eqArr":
            return "; ".join(_each(element, "e"))
        case "func" | "limLow" | "limUpp":
            return " " + " ".join(filter(None, map(_text, element)))
        case name:
            return "" if name == _DELETED else _side_by_side([_text(part) for part in element])


def _side_by_side(texts: Sequence[str]) -> str:
    """One after the other; what follows x^k is none of the power."""
    joined = ""
    for text in texts:
        joined += f" {text}" if _SCRIPT.search(joined) and text[:1].isalnum() else text
    return joined


def _each(element: Element, name: str) -> Sequence[str]:
    return [_text(part) for part in element if tag_of(part) == name]


def _group(text: str) -> str:
    """In parentheses, unless it is one name, number or sign."""
    return text if _SIMPLE.fullmatch(text) else f"({text})"


def _above(text: str) -> str:
    return raised(text) if raised(text) != text else f"^{_group(text)}"


def _sign(element: Element, name: str, otherwise: str) -> str:
    """A sign that the properties of an element name, which may be none."""
    found = [attribute_of(part, "val") for outer in element for part in outer if tag_of(part) == name]
    return found[0] if found else otherwise
