"""Numbers that office programs give to headings and the items of lists, `2.1` or `(b)`, and that files do not have.

A paragraph has only a list and a level, itself or by its style; who wants its number counts as the program does.
Word: ECMA-376, part 1, 17.9. PowerPoint: 21.1.2.4.1. OpenDocument: ODF 1.3, part 3, 5.3 and 19.880.
"""

from __future__ import annotations

import re
import zipfile
from html import escape
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from memory3.formats.readers.elements import attribute_of, tag_of
from memory3.formats.readers.markup.typography import numeral

_STARTS = re.compile(r"<w:p(?:\s[^>]*)?(?<!/)>\s*(?P<properties><w:pPr>.*?</w:pPr>)?", re.DOTALL)
_CHANGED = re.compile(r"<w:pPrChange\b.*?</w:pPrChange>", re.DOTALL)
_STYLE = re.compile(r'<w:pStyle w:val="([^"]*)"')
_LIST, _LEVEL = re.compile(r'<w:numId w:val="(\d+)"'), re.compile(r'<w:ilvl w:val="(\d)"')
_SYSTEMS = {"upperLetter": "A", "lowerLetter": "a", "upperRoman": "I", "lowerRoman": "i"}
_NONE = ("bullet", "none")
_NO_LIST = "0"
_SLIDE_STARTS = re.compile(
    r"(?P<body><\w+:txBody\b)|(?P<levels><a:lstStyle>.*?</a:lstStyle>)"
    r"|<a:p>\s*(?P<properties><a:pPr\b[^>]*(?:/>|(?<!/)>.*?</a:pPr>))?\s*"
    r"<a:r>\s*(?:<a:rPr\b[^>]*(?:/>|(?<!/)>.*?</a:rPr>)\s*)?<a:t>(?!<)",
    re.DOTALL,
)
_SLIDE_LEVEL = re.compile(r"<a:lvl(\d)pPr\b[^>]*(?<!/)>(.*?)</a:lvl\1pPr>", re.DOTALL)
_INDENT = re.compile(r'<a:pPr\b[^>]*\slvl="(\d)"')
_BULLET = re.compile(r"<a:bu(?:None|AutoNum|Char|Blip)\b[^>]*>")
_OUTLINE = "outline"
"""The kind of the numbers of headings; lists have names of styles, which are written with signs such as _20_."""
_COUNTED = "<a:buAutoNum"
_TYPE, _BEGIN = re.compile(r'\stype="(\w+)"'), re.compile(r'\sstartAt="(\d+)"')
_SLIDE_SYSTEMS = {"alphaUc": "A", "alphaLc": "a", "romanUc": "I", "romanLc": "i"}
_SIGNS = {"ParenBoth": "({})", "ParenR": "{})", "Period": "{}.", "Minus": "{}-"}


class Numbering:
    """The lists of a file, and how far their numbers are."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        roots = [
            ElementTree.fromstring(archive.read(name)) if name in archive.namelist() else Element("none")
            for name in ("word/numbering.xml", "word/styles.xml")
        ]
        self._kinds = {attribute_of(one, "abstractNumId"): one for one in _named(roots[0], "abstractNum")}
        self._lists = {attribute_of(one, "numId"): one for one in _named(roots[0], "num")}
        self._styles = {attribute_of(one, "styleId"): one for one in _named(roots[1], "style")}
        self._reached: dict[str, dict[int, int]] = {}  # of a kind of lists: the number of each level
        self._known: dict[str, tuple[str, dict[int, Element], dict[int, int]]] = {}  # what `_levels` has of a list
        self._styled: dict[str, tuple[str, int]] = {}  # what `_of_style` has of a style

    def numbered(self, xml: str) -> str:
        """The main part of the file, each number the first words of its paragraph."""

        def start(found: re.Match[str]) -> str:
            label = self._label(found["properties"] or "")
            return f'{found[0]}<w:r><w:t xml:space="preserve">{escape(label)} </w:t></w:r>' if label else found[0]

        return _STARTS.sub(start, _CHANGED.sub("", xml)) if self._lists else xml

    def _label(self, properties: str) -> str:
        """The number of the next paragraph; empty where it has none."""
        style, of_list, of_level = (found.search(properties) for found in (_STYLE, _LIST, _LEVEL))
        name = style[1] if style else ""
        number, level = self._styled.get(name) or self._styled.setdefault(name, self._of_style(name))
        number, level = of_list[1] if of_list else number, int(of_level[1]) if of_level else level
        kind, levels, begins = self._known.get(number) or self._known.setdefault(number, self._levels(number))
        if level in begins:
            self._reached.setdefault(kind, {})[level] = begins.pop(level) - 1
        if level not in levels:
            return ""
        reached = self._reached.setdefault(kind, {})
        for at in range(level + 1):
            first = _whole(_value(levels.get(at), "start"))
            reached[at] = reached.get(at, first - (at == level)) + (at == level)
        for deeper in [at for at in reached if at > level]:
            del reached[deeper]
        if _value(levels[level], "numFmt") in _NONE:
            return ""
        legal = bool(_named(levels[level], "isLgl"))

        def shown(found: re.Match[str]) -> str:
            at = int(found[1]) - 1
            system = _value(levels[at], "numFmt") if at in levels and not legal else ""
            zero = "0" if system == "decimalZero" and reached.get(at, 1) < 10 else ""
            return zero + numeral(reached.get(at, 1), _SYSTEMS.get(system, "1"))

        return re.sub(r"%(\d)", shown, _value(levels[level], "lvlText")).strip()

    def _levels(self, number: str) -> tuple[str, dict[int, Element], dict[int, int]]:
        """The kind of a list, its levels, and the numbers at which some of them begin in this list."""
        kind = self._kind(number)
        levels = {_whole(attribute_of(one, "ilvl")): one for one in _named(self._kinds.get(kind), "lvl")}
        begins: dict[int, int] = {}
        for one in _named(self._lists.get(number), "lvlOverride"):
            at = _whole(attribute_of(one, "ilvl"))
            levels |= dict(zip([at], _named(one, "lvl"), strict=False))
            begins |= {at: _whole(first)} if (first := _value(one, "startOverride")) else {}
        return kind, levels, begins

    def _kind(self, number: str) -> str:
        """The kind of a list, which may be that of the list of a style."""
        kind = _value(self._lists.get(number), "abstractNumId")
        if style := _value(self._kinds.get(kind), "numStyleLink"):
            kind = _value(self._lists.get(self._of_style(style)[0]), "abstractNumId")
        return kind

    def _of_style(self, style: str) -> tuple[str, int]:
        """The list and the level of the paragraphs of a style, which it may have from the one that it is based on."""
        own = style
        for _ in range(20):
            found = self._styles.get(style)
            for properties in (part for outer in _named(found, "pPr") for part in _named(outer, "numPr")):
                number, level = _value(properties, "numId"), _value(properties, "ilvl")
                if number:
                    linked = [
                        _whole(attribute_of(one, "ilvl"))
                        for one in _named(self._kinds.get(_value(self._lists.get(number), "abstractNumId")), "lvl")
                        if _value(one, "pStyle") in (own, style)
                    ]
                    return number, _whole(level) if level else min(linked, default=0)
            style = _value(found, "basedOn")
        return _NO_LIST, 0


def slide_numbered(xml: str) -> str:
    """A part of slides, each number the first words of its paragraph. An empty paragraph has none."""
    reached: dict[int, tuple[str, int]] = {}  # of each level of a text: its bullet, and its number
    levels: dict[str, str] = {}

    def start(found: re.Match[str]) -> str:
        if found["body"] or found["levels"]:
            reached.clear()
            levels.clear()
            levels.update(_SLIDE_LEVEL.findall(found["levels"] or ""))
            return found[0]
        properties = found["properties"] or ""
        level = int(indent[1]) if (indent := _INDENT.search(properties)) else 0
        bullet = _BULLET.search(properties) or _BULLET.search(levels.get(str(level + 1), ""))
        for deeper in [at for at in reached if at > level]:
            del reached[deeper]
        kind = _TYPE.search(bullet[0]) if bullet else None
        if bullet is None or kind is None or not bullet[0].startswith(_COUNTED):
            reached.pop(level, None)
            return found[0]
        first = int(begin[1]) if (begin := _BEGIN.search(bullet[0])) else 1
        before, number = reached.get(level, ("", 0))
        reached[level] = (bullet[0], number + 1 if before == bullet[0] else first)
        system = next((system for name, system in _SLIDE_SYSTEMS.items() if kind[1].startswith(name)), "1")
        signs = next((signs for name, signs in _SIGNS.items() if kind[1].endswith(name)), "{}")
        return f"{found[0]}{signs.format(numeral(reached[level][1], system))} "

    if _COUNTED not in xml:
        return xml
    return _SLIDE_STARTS.sub(start, xml).replace(_COUNTED, "<a:buNone")  # the converter shows 1. for an empty item


class OpenNumbering:
    """The lists of an OpenDocument file, and how far their numbers are. parts: the roots with its styles."""

    def __init__(self, *parts: Element) -> None:
        styles = [style for part in parts for style in part.iter()]
        self._kinds = {
            attribute_of(one, "name") if tag_of(one) == "list-style" else _OUTLINE: {
                _whole(attribute_of(level, "level")): level for level in one
            }
            for one in styles
            if tag_of(one) in ("list-style", "outline-style")
        }
        self._unnumbered = {
            attribute_of(one, "name")
            for one in styles
            if any(key.endswith("}list-style-name") and not value for key, value in one.attrib.items())
        }  # styles of headings
        self._reached: dict[str, dict[int, int]] = {}  # by the list and by its kind: the number of each level
        self._headings: dict[int, int] = {}

    def number(self, element: Element, kind: str = "", level: int = 0, reached: dict[int, int] | None = None) -> None:
        """Make each number the first words of its paragraph. kind, level, reached: of the list that it is in."""
        for child in element:
            name, begin = tag_of(child), attribute_of(child, "start-value")
            if name == "list":
                inner, goes_on = attribute_of(child, "style-name") or kind, attribute_of(child, "continue-list")
                before = reached if reached is not None else self._reached.get(goes_on or inner, {})
                if not goes_on and attribute_of(child, "continue-numbering") != "true":
                    before = {at: number for at, number in before.items() if at <= level}
                self._reached[inner] = self._reached[attribute_of(child, "id")] = before
                self.number(child, inner, level + 1, before)
            elif name in ("list-item", "list-header", "section"):
                if name == "list-item" and reached is not None and len(child) and tag_of(child[0]) in ("p", "h"):
                    self._start(child[0], kind, level, reached, begin)
                self.number(child, kind, level, reached)
            elif name != "tracked-changes":
                if name == "h" and not level and attribute_of(child, "style-name") not in self._unnumbered:
                    at = _whole(attribute_of(child, "outline-level")) or 1
                    self._start(child, _OUTLINE, at, self._headings, begin)
                self.number(child)

    def _start(self, paragraph: Element, kind: str, level: int, reached: dict[int, int], begin: str) -> None:
        levels = self._kinds.get(kind, {})
        for at in range(1, level + 1):
            first = _whole(attribute_of(levels[at], "start-value") or "1") if at in levels else 1
            reached[at] = reached.get(at, first - (at == level)) + (at == level)
        reached[level] = _whole(begin) if begin else reached[level]
        for deeper in [at for at in reached if at > level]:
            del reached[deeper]
        style = levels.get(level, Element("none"))
        if not attribute_of(style, "num-format") or not "".join(paragraph.itertext()).strip():
            return
        shown = _whole(attribute_of(style, "display-levels")) or 1
        numbers = [
            numeral(reached[at], system)
            for at in range(max(level - shown, 0) + 1, level + 1)
            if (system := attribute_of(levels.get(at, Element("none")), "num-format"))
        ]
        label = attribute_of(style, "num-prefix") + ".".join(numbers) + attribute_of(style, "num-suffix")
        paragraph.text = f"{label.strip()} {paragraph.text or ''}"


def _named(element: Element | None, name: str) -> list[Element]:
    return [part for part in element if tag_of(part) == name] if element is not None else []


def _value(element: Element | None, name: str) -> str:
    """The value of a property of an element; empty without."""
    return next((attribute_of(part, "val") for part in _named(element, name)), "")


def _whole(value: str) -> int:
    return int(value) if value.isdecimal() else 0
