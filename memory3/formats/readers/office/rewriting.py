"""The copy of a document that the converter gets, in which what it would lose is written so that it is kept.

It drops the entities of Word files, and escapes only some of what means something in Markdown: `&amp;`, `__init__` and
`[x](y)` would be lost. So such a sign is another character on the way, to which neither gives a meaning. Tabs and
hyphens that are elements become characters, pictures of slides their descriptions, and text boxes paragraphs.
"""

from __future__ import annotations

import html
import io
import re
import string
import zipfile
from collections.abc import Callable
from functools import partial
from xml.etree import ElementTree

from memory3.formats.readers.elements import attribute_of
from memory3.formats.readers.markup.typography import raised
from memory3.formats.readers.office import rtf, symbols
from memory3.formats.readers.office.formulas import formula_text
from memory3.formats.readers.office.numbering import Numbering, slide_numbered

_HIDDEN = str.maketrans(string.punctuation, "".join(map(chr, range(0xFDD0, 0xFDF0))))
"""The 32 signs of ASCII as the 32 characters that Unicode keeps for the inside of programs."""
SHOWN = {hidden: sign for sign, hidden in _HIDDEN.items()}
_NEVER_ESCAPED = {ord(sign): _HIDDEN[ord(sign)] for sign in "_[]"}
_NO_ITEM = re.compile(r"^[ \t]*(?:\d+\)|\*)(?=[ \t])", re.MULTILINE)
"""How a typed line begins that Markdown takes for an item; the converter has `1.` and `-` for items."""
_ZIPPED = (".docx", ".pptx")
"""Kinds in which all signs are hidden: the converter drops some, and numbers anew what looks like an item."""
_PICTURE = re.compile(r"<p:pic\b.*?</p:pic>", re.DOTALL)
_DESCRIPTION = re.compile(r'<p:cNvPr\b[^>]*\bdescr="([^"]+)"')
_PLACE = re.compile(r"<p:spPr\b.*</p:spPr>", re.DOTALL)


def _described(picture: re.Match[str]) -> str:
    """A shape with the alternative text of a picture in its place, or nothing."""
    text, place = _DESCRIPTION.search(picture[0]), _PLACE.search(picture[0])
    if not text:
        return ""
    body = f"<p:txBody><a:p><a:r><a:t>{text[1]}</a:t></a:r></a:p></p:txBody>"
    return f"<p:sp><p:nvSpPr/>{place[0] if place else ''}{body}</p:sp>"


def _raised(run: re.Match[str]) -> str:
    """A run of raised text, as far as it is a number."""
    return f"{run[1]}{raised(run[2])}"


def _formula(kind: str, found: re.Match[str]) -> str:
    """The words of a formula as a run. kind: the prefix of its name."""
    text = html.escape(formula_text(found[0]), quote=False)
    return f"<{kind}:r><{kind}:t>{text}</{kind}:t></{kind}:r>"


def _form_field(found: re.Match[str]) -> str:
    """A drop-down list or a check box of a form with the text that Word shows for it."""
    settings: dict[str, str] = dict(_SETTING.findall(found["settings"]))
    value = next((settings[name] for name in ("checked", "result", "default") if name in settings), "0")
    entries = dict(enumerate(_ENTRY.findall(found["settings"])))
    box = "☐" if value in ("0", "false", "off") else "☒"
    text = box if found["kind"] == "checkBox" else entries.get(int(value) if value.isdecimal() else 0, "")
    return f'<w:t xml:space="preserve">{text}</w:t>{found[0]}'


_FORM_FIELD = re.compile(
    r"<w:fldChar\b[^>]*(?<!/)>(?:(?!</w:fldChar>).)*?<w:(?P<kind>ddList|checkBox)>(?P<settings>.*?)</w:(?P=kind)>",
    re.DOTALL,
)
_SETTING = re.compile(r'<w:(checked|result|default)(?:\s+w:val="([^"]*)")?\s*/>')
_ENTRY = re.compile(r'<w:listEntry\s+w:val="([^"]*)"')
_FIELD = r'<a:fld\b(?![^>]*type="slidenum")[^>]*>((?:(?!</a:fld>).)*)</a:fld>'
"""Among other words; one alone is the date that stands on every slide."""
_AROUND_FORMULA = re.compile(r"</?(?:m:oMathPara|a14:m)\b[^>]*>")
_BETWEEN_FORMULAS = re.compile(r"(?<=</m:oMath>)\s*(?=<m:oMath[ >])")
_FORMULA = re.compile(r"<m:oMath\b[^>]*(?<!/)>.*?</m:oMath>", re.DOTALL)
_WORD_ABOVE = r'<w:(?:vertAlign w:val="superscript|position w:val="[1-9])'
_REWRITTEN: dict[str, tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = {
    ".docx": (
        (_AROUND_FORMULA, ""),
        (_BETWEEN_FORMULAS, '<w:r><w:t xml:space="preserve"> </w:t></w:r>'),
        (_FORMULA, partial(_formula, "w")),
        (re.compile(r"<w:(?:tab|cr|ptab\b[^>]*)\s*/>"), '<w:t xml:space="preserve"> </w:t>'),
        (symbols.SYMBOL, symbols.run),
        (_FORM_FIELD, _form_field),
        (re.compile(r"<w:noBreakHyphen\s*/>"), "<w:t>-</w:t>"),
        (re.compile(r"<w:br\b[^>]*/>"), "<w:br/>"),
        (re.compile(r"<w:moveFrom\b[^>]*(?<!/)>.*?</w:moveFrom>", re.DOTALL), ""),
        (re.compile(rf"({_WORD_ABOVE}(?:(?!</?w:r\b).)*?<w:t\b[^>]*>)([^<]+)", re.DOTALL), _raised),
        (re.compile(r"<w:(?:vertAlign|d?strike|highlight|u|b|i)\b[^>]*/>"), ""),
    ),
    ".pptx": (
        (_AROUND_FORMULA, ""),
        (_BETWEEN_FORMULAS, "<a:r><a:t> </a:t></a:r>"),
        (_FORMULA, partial(_formula, "a")),
        (re.compile(r'(<a:rPr\b[^>]*\bbaseline="[1-9](?:(?!</?a:(?:r|br)\b).)*?<a:t>)([^<]+)', re.DOTALL), _raised),
        (re.compile(r"<a:rPr\b[^>]*(?:/>|>(?:(?!</?a:rPr\b).)*</a:rPr>)\s*(?=<a:t\b)", re.DOTALL), ""),
        (re.compile(rf"(?<=</a:r>){_FIELD}", re.DOTALL), r"<a:r>\1</a:r>"),
        (re.compile(rf"{_FIELD}(?=<a:r>)", re.DOTALL), r"<a:r>\1</a:r>"),
        (re.compile(r"</a:t>\s*</a:r>\s*(?:<a:r>\s*<a:t\s*/>\s*</a:r>\s*)*<a:r>\s*<a:t>"), ""),
        (_PICTURE, _described),
    ),
}
"""By suffix, what the converter drops, has twice, shows as signs or cannot read, and what is in its place."""
_FALLBACK = re.compile(r"<mc:Fallback\b[^>]*(?<!/)>.*?</mc:Fallback>", re.DOTALL)
_ALTERNATIVE = re.compile(r"</?mc:\w+\b[^>]*>")
_ROOT = re.compile(r"<[a-z]\w*:\w+\b[^>]*")
_NAMESPACE = re.compile(r"""\s(xmlns:[\w.-]+)=("[^"]*"|'[^']*')""")
_BOXED = re.compile(r"<(?P<end>/)?(?P<name>w:p|w:txbxContent|mc:Fallback)\b[^>]*(?<!/)>")
_NOTES = ("word/footnotes.xml", "word/endnotes.xml")
"""Read by `documents`: the converter leaves out the first footnote of most files, and all endnotes."""
_LINKS, _WORD_MAIN = "_rels/.rels", "word/document.xml"
_TEXT_PARTS = re.compile(r"(word|ppt)/.*\.xml", re.IGNORECASE)
_XML = re.compile(
    r"<!--.*?-->|<\?.*?\?>|<!\[CDATA\[(?P<exact>.*?)\]\]>|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>"
    r"""|<[^>"']*(?:(?:"[^"]*"|'[^']*')[^>"']*)*>|(?P<text>[^<]+)""",
    re.DOTALL,
)
_RTF_SIGN = re.compile(rb"(?<![\x80-\xff])(\\(?:u-?\d+ ?)?)?([_\[\]])")


def hide(data: bytes, suffix: str) -> bytes:
    """A file without the punctuation of its text, as far as its kind needs it. suffix: of its kind."""
    if suffix == ".rtf":
        return _RTF_SIGN.sub(_hidden_in_rtf, rtf.rewritten(data))
    if suffix not in _ZIPPED or not zipfile.is_zipfile(io.BytesIO(data)):
        return data
    copy = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(copy, "w") as hidden:
        renamed = _renamed(archive) if suffix == ".docx" else {}
        numbering = Numbering(archive)
        for name in dict.fromkeys(name for name in archive.namelist() if name not in _NOTES):
            part = archive.read(name)
            new = renamed.get(name, name)
            numbered = numbering.numbered if new == _WORD_MAIN else str
            hidden.writestr(new, _hidden_in_xml(part, suffix, numbered) if _TEXT_PARTS.fullmatch(name) else part)
    return copy.getvalue()


def _renamed(archive: zipfile.ZipFile) -> dict[str, str]:
    """The main part of a Word file and its relationships, by their names, with those that the converter looks for."""
    links = ElementTree.fromstring(archive.read(_LINKS)) if _LINKS in archive.namelist() else ()
    mains = (attribute_of(link, "Target") for link in links if attribute_of(link, "Type").endswith("/officeDocument"))
    name = next(mains, _WORD_MAIN).removeprefix("/")
    return {name: _WORD_MAIN, _links_of(name): _links_of(_WORD_MAIN)}


def _links_of(part: str) -> str:
    folder, _, name = part.rpartition("/")
    return f"{folder}/_rels/{name}.rels"


def rewritten(xml: str, suffix: str) -> str:
    """A part of a file in which what would be lost is written so that it is kept. suffix: of its kind."""
    if suffix == ".pptx":
        xml = _first_alternatives(xml)
    for pattern, instead in _REWRITTEN.get(suffix, ()):
        xml = pattern.sub(instead, xml)
    return _boxes_after(xml) if suffix == ".docx" else slide_numbered(xml)


def _first_alternatives(xml: str) -> str:
    """A part of slides with what newer programs show in place of alternatives, which the converter leaves out."""
    xml = _FALLBACK.sub("", xml)
    names = dict(_NAMESPACE.findall("".join(_ALTERNATIVE.findall(xml))))

    def declaring(root: re.Match[str]) -> str:
        missing = names.keys() - dict(_NAMESPACE.findall(root[0]))
        return root[0] + "".join(f" {name}={names[name]}" for name in sorted(missing))

    return _ROOT.sub(declaring, _ALTERNATIVE.sub("", xml), count=1)


def _boxes_after(xml: str) -> str:
    """A part of a Word file whose text boxes follow the paragraphs that they are anchored in.

    The converter reads a box in place of its paragraph. A fallback has the box again, for older programs.
    """
    kept: list[tuple[str, str]] = [("", "")]  # of each open element, outermost first: its XML and its boxes
    at = 0
    for edge in _BOXED.finditer(xml):
        inside, boxes = kept.pop()
        inside += xml[at : edge.start()]
        at = edge.end()
        if not edge["end"]:
            kept += [(inside, boxes), (edge[0] if edge["name"] == "w:p" else "", "")]
            continue
        outer, others = kept.pop()
        if edge["name"] == "w:p":
            outer += f"{inside}{edge[0]}{boxes}"
        elif edge["name"] == "w:txbxContent":
            others += inside + boxes
        kept.append((outer, others))
    return kept[0][0] + xml[at:]


def hide_rest(markdown: str, suffix: str) -> str:
    """Markdown in which the signs that the converter does not escape stand for themselves.

    That of sheets and old slides has no emphasis and no links.
    """
    if suffix in _ZIPPED:
        return markdown
    markdown = _NO_ITEM.sub(lambda found: found[0].translate(_HIDDEN), markdown)
    return markdown if suffix == ".rtf" else markdown.translate(_NEVER_ESCAPED)


def _hidden_in_xml(part: bytes, suffix: str, numbered: Callable[[str], str]) -> bytes:
    """With characters for entities; a part in another encoding than UTF-8 stays as it is. numbered: adds numbers."""

    def hidden(found: re.Match[str]) -> str:
        text = html.unescape(found["text"] or "") if found["exact"] is None else found["exact"]
        return html.escape(text.translate(_HIDDEN), quote=False) if text else found[0]

    try:
        xml = numbered(rewritten(part.decode(), suffix))
    except UnicodeError:
        return part
    return _XML.sub(hidden, xml).encode()


def _hidden_in_rtf(found: re.Match[bytes]) -> bytes:
    """As Unicode; a sign that is part of a command stays."""
    return found[0] if found[1] else rtf.encoded(chr(_HIDDEN[ord(found[2])]))
