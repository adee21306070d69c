"""Documents of office programs, converted by kreuzberg to text, and what it leaves out.

kreuzberg is one wheel without dependencies (decision 0050). It keeps no cache here, and no model is loaded.
"""

from __future__ import annotations

import contextlib
import html
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from memory3.errors import InvalidInput
from memory3.formats.document import ENCRYPTED, FileDocument, check_unpacked, title_of, useful_title
from memory3.formats.libraries import imported
from memory3.formats.readers.elements import tag_of
from memory3.formats.readers.markup.html import read_html
from memory3.formats.readers.markup.markdown import markdown_text
from memory3.formats.readers.markup.typography import sentence, words
from memory3.formats.readers.office import numbers, office97, opendocument, rewriting, rtf, sheets, sheets97, symbols
from memory3.formats.readers.office.charts import chart_text, chart_titles
from memory3.printable import counted
from memory3.text.paragraphs import LABEL

VARIANTS = {
    variant: base
    for base, variants in {
        ".docx": ".docm .dotx .dotm",
        ".pptx": ".pptm .ppsx .ppsm .potx .potm",
        ".xlsx": ".xlsm .xltx .xltm",
        ".odt": ".ott",
        ".ods": ".ots",
        ".odp": ".otp",
        ".odg": ".otg",
    }.items()
    for variant in variants.split()
}
"""Templates, shows and files with macros, which have the content of another kind, by suffix."""
_CHARTS = (r"(word|ppt)/charts/chart\w*\.xml", "Chart")
_TITLES = (r"xl/charts/chart\d+\.xml", "Chart title")
_DIAGRAMS = (r"(word|ppt)/diagrams/data\d+\.xml", "Diagram")
_TEXT_BOX = (r"xl/(drawings/drawing|diagrams/data)\d+\.xml", "Text box")
_PRINTED = tuple((r"xl/worksheets/sheet\d+\.xml", label) for label in ("Printed header", "Printed footer"))
_FURTHER = {
    ".docx": (
        (r"word/header\d*\.xml", "Header"),
        (r"word/footer\d*\.xml", "Footer"),
        (r"word/footnotes\.xml", "Footnote"),
        (r"word/endnotes\.xml", "Endnote"),
        (r"word/comments\.xml", "Comment"),
        _CHARTS,
        _DIAGRAMS,
    ),
    ".pptx": (
        (r"ppt/notesSlides/notesSlide\d+\.xml", "Notes"),
        (r"ppt/comments/.*\.xml", "Comment"),
        _CHARTS,
        _DIAGRAMS,
    ),
    ".xlsx": (_PRINTED[0], _PRINTED[1], (r"xl/(threaded)?[cC]omments.*\.xml", "Comment"), _TEXT_BOX, _TITLES),
    ".xlsb": (_TEXT_BOX, _TITLES),
}
"""Parts of a file that the converter leaves out, by suffix, with the label of their text."""
_EDGE = r"<(?:odd|even|first){}\b[^>]*>([^<]+)<"
_CODE = re.compile(r'&(?:"[^"]*"|K(?:[0-9A-Fa-f]{6}|\d\d[+-]\d{3})|1#(?=&)|\d+|[A-Za-z&])')
_CODES = {"&&": "&", "&P": "\0", **dict.fromkeys(("&L", "&C", "&R"), "\n")}


def _printed_text(edge: str, sheet: bytes) -> str:
    """What is above or below the printed pages of a sheet. edge: "Header" or "Footer"."""
    found = re.findall(_EDGE.format(edge), sheet.decode("utf-8", "replace"))
    return _without_codes(map(html.unescape, found))


def _without_codes(edges: Iterable[str]) -> str:
    """Printed headers or footers without fields such as "Page 1 of 2". Codes: ECMA-376, part 1, 18.3.1.46."""
    texts = [_CODE.sub(lambda code: _CODES.get(code[0], ""), text) for text in edges]
    lines = [line for text in texts for line in text.split("\n") if "\0" not in line or len(line.split()) > 3]
    return "\n".join(dict.fromkeys(filter(None, (words(line.replace("\0", "")) for line in lines))))


_READ: dict[str, Callable[[bytes], str]] = {
    _CHARTS[1]: chart_text,
    _TITLES[1]: lambda part: " ".join(chart_titles(ElementTree.fromstring(part))),
    **{label: partial(_printed_text, label.split()[1].capitalize()) for _, label in _PRINTED},
}
_NOTES = ("Footnote", "Endnote", "Comment")
"""Labels of parts that hold several texts, one a paragraph."""
_WORDS = re.compile(r"word/[^/]+\.xml")
_PICTURES = re.compile(r"(word|ppt|xl)/media/|Pictures/", re.IGNORECASE)
_CONTROLS = re.compile(r"(word|ppt|xl)/(ctrlProps/ctrlProp|activeX/activeX)\d+\.xml", re.IGNORECASE)
_EMBEDDED = re.compile(r"(word|ppt|xl)/embeddings/.", re.IGNORECASE)
_BINARY_COMMENTS = re.compile(r"xl/comments\d*\.bin")
_NO_DAY = re.compile(r"(?<=\| )1899-12-3[01] (?=\d\d:)")
"""Before a time of day in a sheet."""
_MIDNIGHT = re.compile(r"(?<=\d{4}-\d\d-\d\d) 00:00:00\b")
_FOOTNOTE = re.compile(r"\[\^\w+\](?!:)")
_SHEETS = (".xlsx", ".xlsb", ".ods", ".xls", ".xlt")
_FORMULA = re.compile(rb"<c\b[^>]*><f\b[^>]*>[^<]*</f>(?:<v\s*/>|<v></v>)?</c>")
_PARAGRAPHS = ("p", "text")
_CHARACTERS = {"tab": " ", "ptab": " ", "br": " ", "cr": " ", "noBreakHyphen": "-"}
_RUNS = ("t", *_CHARACTERS)
_PANIC = "PanicException"
"""A fault of the converter that is no Exception; its class cannot be imported."""


def read_office(source: Path) -> Iterator[FileDocument]:
    """Word, PowerPoint, Excel, OpenDocument and RTF: headings, lists, tables, notes."""
    imported("kreuzberg")  # what is missing is not the file's fault
    suffix = VARIANTS.get(source.suffix.lower(), source.suffix.lower())
    old = suffix in office97.SUFFIXES
    try:
        mime = office97.real_type(source) if old else office97.MIME_OF.get(suffix)
        if mime == office97.HTML:  # as many programs export tables
            yield from read_html(source)
            return
        word = old and mime is None and suffix in (".doc", ".dot")
        suffix = office97.SUFFIX_OF.get(mime or "", suffix)
        head = office97.WordHead.of(source.read_bytes()) if word else office97.WordHead()
        if head.encrypted:
            raise InvalidInput(ENCRYPTED)
        further, notes = _further(source, suffix)
        if suffix in opendocument.SUFFIXES:
            with zipfile.ZipFile(source) as archive:
                named, heading, text = opendocument.text_of(archive)
        else:
            named, text = _converted(source, suffix, mime, "plain" if word else "markdown")
            if word:
                notes = head.notes(text)
                heading, text = "", office97.word_text(text)
            else:
                text = rewriting.hide_rest(text, suffix)
                heading, text = markdown_text(_plain(text), headed=None, numbered=False, signs=rewriting.SHOWN)
    except BaseException as error:  # a broken file shows itself by any error; it must not end the reading of others
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        yield FileDocument.broken(source, f"{source.suffix[1:].upper()} file", error)
        return
    named_sheets = suffix in _SHEETS  # whose headings are the names of sheets
    title = named or ("" if named_sheets else useful_title(heading)) or title_of(source)
    if heading and heading != title and not (named_sheets and not useful_title(heading)):
        text = f"{sentence(heading)}\n\n{text}"
    text = "\n\n".join(part for part in (text.strip(), "\n".join(further)) if part)
    yield FileDocument(str(source), str(source), title, text).noted(*notes)


def _converted(source: Path, suffix: str, mime: str | None, form: str) -> tuple[str, str]:
    """The title and the text that the converter finds, as "plain" text or "markdown" with hidden punctuation."""
    kreuzberg = imported("kreuzberg")
    settings = kreuzberg.ExtractionConfig(output_format=form, use_cache=False)
    mime = mime or sheets.MIME_OF.get(suffix)
    if mime:  # it refuses some types of templates, which it reads as the kind that they are templates of
        data = sheets.compact(rewriting.hide(source.read_bytes(), suffix), suffix)
        data = numbers.with_shown_numbers(data) if suffix == ".xlsx" else data
        found = kreuzberg.extract_bytes_sync(data, mime, settings)
    else:
        found = kreuzberg.extract_file_sync(str(source), None, settings)
    title = str(dict(found.metadata).get("title") or "")
    title = rtf.title_text(title, source.read_bytes()) if suffix == ".rtf" else title
    return useful_title(title.translate(rewriting.SHOWN)), str(found.content)


def _plain(markdown: str) -> str:
    """Markdown without midnight after dates, the day of times and the marks of footnotes; the notes themselves stay."""
    markdown = _FOOTNOTE.sub("", _MIDNIGHT.sub("", _NO_DAY.sub("", markdown)))
    return re.sub(r"^\[\^\w+\]:[ \t]*\n?[ \t]*", "\n", markdown, flags=re.MULTILINE).replace("&#32;", " ")


def _further(source: Path, suffix: str) -> tuple[list[str], list[str]]:
    """Lines of the parts that the converter leaves out, and notes of what is not read. suffix: of its kind."""
    if suffix == ".rtf":
        return [], rtf.notes(source.read_bytes())
    if suffix in sheets97.SUFFIXES:
        old = sheets97.texts_of(source.read_bytes())
        return _labelled((label, _without_codes([text]) if label in _READ else text) for label, text in old), []
    if not zipfile.is_zipfile(source):
        return [], []
    with zipfile.ZipFile(source) as archive:
        names = archive.namelist()
        check_unpacked(archive)
        texts = [
            (label, text)
            for pattern, label in _FURTHER.get(suffix, ())
            for name in sorted((n for n in names if re.fullmatch(pattern, n)), key=_number)
            for part in [archive.read(name)]
            for whole in [_READ[label](part) if label in _READ else _part_text(part, suffix)]
            for text in (whole.split("\n") if label in _NOTES else [whole])
        ]
        if suffix in opendocument.SUFFIXES:
            texts += opendocument.left_out(archive, suffix)
        formulas = sum(len(_FORMULA.findall(archive.read(n))) for n in names if n.startswith("xl/worksheets/sheet"))
        parts = [archive.read(n).decode("utf-8", "ignore") for n in names if suffix == ".docx" and _WORDS.fullmatch(n)]
    unknown = sum(not symbols.character(one) for part in parts for one in symbols.SYMBOL.findall(part))
    pictures = sum(1 for name in names if _PICTURES.match(name) and not name.endswith("/"))
    controls = sum(1 for name in names if _CONTROLS.fullmatch(name))
    embedded = sum(1 for name in names if _EMBEDDED.match(name))
    notes = []
    if any(map(_BINARY_COMMENTS.fullmatch, names)):
        notes.append("comments not read: save it as .xlsx")
    if formulas:
        notes.append(f"{counted(formulas, 'formula')} without a stored value: open the file in Excel and save it")
    if unknown:
        notes.append(f"{counted(unknown, 'symbol')} of unknown fonts in it not read")
    if pictures:
        notes.append(f"{counted(pictures, 'picture')} in it not read")
    if controls:
        notes.append(f"{counted(controls, 'form control')} in it: what is chosen is not read")
    if embedded:
        notes.append(f"{counted(embedded, 'embedded file')} in it not read")
    return _labelled(texts), notes


def _labelled(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Labels and texts as lines, each once; a text that has a label of its own keeps it."""
    lines: list[str] = []
    for label, text in texts:
        line = f"{label}: {text}" if not LABEL.match(text) or label == "Comment" else text
        if text and line not in lines:
            lines.append(line)
    return lines


def _number(name: str) -> int:
    digits = re.findall(r"\d+", name)
    return int(digits[-1]) if digits else 0


def _part_text(xml: bytes, suffix: str) -> str:
    """The words of a part; the field of a slide's or a page's number does not count. suffix: of the file's kind."""
    paragraphs: list[str] = []
    with contextlib.suppress(UnicodeError):
        xml = rewriting.rewritten(xml.decode(), suffix).encode()
    for element in ElementTree.fromstring(xml).iter():
        if tag_of(element) in _PARAGRAPHS:
            runs = [_CHARACTERS.get(tag_of(run), run.text or "") for run in element.iter() if tag_of(run) in _RUNS]
            text = words("".join(runs) if runs else element.text or "")
            if text and not text.isdigit() and text not in paragraphs:
                paragraphs.append(text)
    return "\n".join(paragraphs)
