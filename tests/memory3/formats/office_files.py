"""Small files of office programs, as their standards have them."""

import re
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_X = f'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="{_OFFICE}"'
_P = (
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    f'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:r="{_OFFICE}"'
)
_OD = "urn:oasis:names:tc:opendocument:xmlns"
Rows = Sequence[Sequence[object]]
TABLE: Rows = [("Printer", "Room", "IP address"), ("Alma", 12, "10.0.0.7"), ("Bero", 14, "10.0.0.9")]
BERO = "Printer: Bero; IP address: 10.0.0.9"
"""A line that is read of the last row of TABLE: a cell, with the first one of its row."""


def _archive(path: Path, main: str, content_type: str, parts: dict[str, str]) -> Path:
    kinds = f'<Override PartName="/{main}" ContentType="{content_type}"/>'
    types = f"""{_HEAD}<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Default Extension="xml" ContentType="application/xml"/>{kinds}</Types>"""
    links = _relationships(("rId1", "officeDocument", main))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {"[Content_Types].xml": types, "_rels/.rels": links, **parts}.items():
            archive.writestr(name, text)
    return path


def _relationships(*found: tuple[str, str, str]) -> str:
    each = "".join(f'<Relationship Id="{i}" Type="{_OFFICE}/{kind}" Target="{to}"/>' for i, kind, to in found)
    return f'{_HEAD}<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{each}</Relationships>'


def _paragraph(text: str) -> str:
    return f'<w:p><w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'


def write_docx(path: Path, *blocks: str | Rows, **parts: str) -> Path:
    """Paragraphs and tables. parts: text of `header1`, `footer1`, `comments` and so on."""
    body = ""
    for block in blocks:
        if isinstance(block, str):
            body += _paragraph(block)
        else:
            rows = ("".join(f"<w:tc>{_paragraph(str(cell))}</w:tc>" for cell in row) for row in block)
            body += f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"
    document = {"word/document.xml": f"{_HEAD}<w:document {_W}><w:body>{body}</w:body></w:document>"}
    further = {f"word/{name}.xml": f"{_HEAD}<w:part {_W}>{_paragraph(text)}</w:part>" for name, text in parts.items()}
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    return _archive(path, "word/document.xml", kind, {**document, **further})


def write_xlsx(path: Path, sheets: dict[str, Rows], step: tuple[int, int] | None = None) -> Path:
    """Sheets by name; a cell that begins with = is a formula without a stored value.

    step: rows and columns from one cell to the next, which then have their places; there are empty ones between.
    """
    parts, names, links = {}, "", []
    for number, (name, rows) in enumerate(sheets.items(), 1):
        if step:
            data = "".join(_row(1 + step[0] * at, row, step[1]) for at, row in enumerate(rows))
        else:
            data = "".join(f'<row r="{r}">{"".join(map(_cell, row))}</row>' for r, row in enumerate(rows, 1))
        parts[f"xl/worksheets/sheet{number}.xml"] = f"{_HEAD}<worksheet {_X}><sheetData>{data}</sheetData></worksheet>"
        names += f'<sheet name="{name}" sheetId="{number}" r:id="rId{number}"/>'
        links.append((f"rId{number}", "worksheet", f"worksheets/sheet{number}.xml"))
    parts["xl/workbook.xml"] = f"{_HEAD}<workbook {_X}><sheets>{names}</sheets></workbook>"
    parts["xl/_rels/workbook.xml.rels"] = _relationships(*links)
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
    return _archive(path, "xl/workbook.xml", kind, parts)


def _row(number: int, values: Sequence[object], columns: int) -> str:
    places = (f"{chr(ord('A') + columns * at)}{number}" for at in range(len(values)))
    below = f'<row r="{number + 1}"><c r="Z{number + 1}" s="0"/></row>'
    return f'<row r="{number}">{"".join(map(_cell, values, places))}</row>{below}'


def _cell(value: object, place: str = "") -> str:
    at = f' r="{place}"' if place else ""
    if isinstance(value, str) and value.startswith("="):
        return f"<c{at}><f>{escape(value[1:])}</f></c>"
    if isinstance(value, str):
        return f'<c{at} t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f"<c{at}><v>{value}</v></c>"


def write_pptx(path: Path, *slides: tuple[str, str, str]) -> Path:
    """Slides of (title, text, speaker notes)."""
    parts, ids, links = {}, "", []
    for number, (title, text, notes) in enumerate(slides, 1):
        shapes = _shape(title, 'type="title"') + _shape(text, 'idx="1"')
        parts[f"ppt/slides/slide{number}.xml"] = _slide("sld", shapes)
        note = _slide("notes", _shape(notes, ""))
        parts[f"ppt/notesSlides/notesSlide{number}.xml"] = note
        ids += f'<p:sldId id="{255 + number}" r:id="rId{number}"/>'
        links.append((f"rId{number}", "slide", f"slides/slide{number}.xml"))
    parts["ppt/presentation.xml"] = f"{_HEAD}<p:presentation {_P}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>"
    parts["ppt/_rels/presentation.xml.rels"] = _relationships(*links)
    kind = "application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml"
    return _archive(path, "ppt/presentation.xml", kind, parts)


def write_xlsb(path: Path, rows: Rows, sheet: str = "rId1", step: tuple[int, int] = (1, 1)) -> Path:
    """A binary sheet "Sheet1" of texts and numbers.

    sheet: the relationship by which the workbook names it. step: rows and columns from one cell to the next.
    """

    def record(kind: int, body: bytes = b"") -> bytes:
        head = bytes([kind]) if kind < 128 else bytes([kind & 127 | 128, kind >> 7])
        return head + bytes([len(body)]) + body

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode("utf-16-le")

    cells = b""
    for number, row in enumerate(rows):
        cells += record(0, struct.pack("<I", step[0] * number) + bytes(13))
        for column, value in enumerate(row):
            place = struct.pack("<II", step[1] * column, 0)
            cells += (
                record(6, place + text(value))
                if isinstance(value, str)
                else record(5, place + struct.pack("<d", value))
            )
    size = record(148, struct.pack("<4I", 0, step[0] * (len(rows) - 1), 0, step[1] * (len(rows[0]) - 1)))
    book = (
        record(131) + record(143) + record(156, struct.pack("<II", 0, 1) + text(sheet) + text("Sheet1")) + record(144)
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_rels/.rels", _relationships(("rId1", "officeDocument", "xl/workbook.bin")))
        archive.writestr("xl/_rels/workbook.bin.rels", _relationships(("rId1", "worksheet", "worksheets/sheet1.bin")))
        archive.writestr("xl/workbook.bin", book + record(132))
        archive.writestr(
            "xl/worksheets/sheet1.bin", record(129) + size + record(145) + cells + record(146) + record(130)
        )
    return path


def _slide(kind: str, shapes: str) -> str:
    return f"{_HEAD}<p:{kind} {_P}><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:{kind}>"


def _shape(text: str, place: str) -> str:
    lines = "".join(f"<a:p><a:r><a:t>{escape(line)}</a:t></a:r></a:p>" for line in text.split("\n"))
    properties = f'<p:nvSpPr><p:cNvPr id="1" name="x"/><p:cNvSpPr/><p:nvPr><p:ph {place}/></p:nvPr></p:nvSpPr>'
    return f"<p:sp>{properties}<p:spPr/><p:txBody><a:bodyPr/>{lines}</p:txBody></p:sp>"


def write_odt(path: Path, heading: str, paragraph: str, rows: Rows) -> Path:
    """A heading, a paragraph and a table."""
    cells = "".join(
        f"<table:table-row>{''.join(f'<table:table-cell><text:p>{cell}</text:p></table:table-cell>' for cell in row)}"
        "</table:table-row>"
        for row in rows
    )
    names = f'xmlns:office="{_OD}:office:1.0" xmlns:text="{_OD}:text:1.0" xmlns:table="{_OD}:table:1.0"'
    body = f'<text:h text:outline-level="1">{heading}</text:h><text:p>{paragraph}</text:p>'
    body = f"<office:body><office:text>{body}<table:table>{cells}</table:table></office:text></office:body>"
    content = f"<office:document-content {names}>{body}</office:document-content>"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("content.xml", _HEAD + content)
    return path


def write_opendocument(path: Path, kind: str, body: str, **further: str) -> Path:
    """kind: the end of its MIME type. body: of the content. further: master pages as `styles`, fields as `meta`."""
    parts = {"text": "text", "table": "table", "draw": "drawing", "presentation": "presentation", "style": "style"}
    names = "".join(f' xmlns:{prefix}="{_OD}:{name}:1.0"' for prefix, name in {**parts, "office": "office"}.items())
    names += ' xmlns:dc="http://purl.org/dc/elements/1.1/"'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        manifest = '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>'
        archive.writestr("META-INF/manifest.xml", manifest)
        for name, part in {"content": body, **further}.items():
            archive.writestr(f"{name}.xml", f"{_HEAD}<office:document{names}>{part}</office:document>")
    return path


def write_epub(path: Path, title: str, *chapters: str) -> Path:
    """Chapters of XHTML."""
    files = {f"c{n}.xhtml": chapter for n, chapter in enumerate(chapters)}
    items = "".join(f'<item id="{n}" href="{n}" media-type="application/xhtml+xml"/>' for n in files)
    spine = "".join(f'<itemref idref="{n}"/>' for n in files)
    dublin = f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
    body = f"{dublin}<manifest>{items}</manifest><spine>{spine}</spine>"
    package = f'<package xmlns="http://www.idpf.org/2007/opf" version="3.0">{body}</package>'
    root = '<rootfiles><rootfile full-path="b.opf" media-type="application/oebps-package+xml"/></rootfiles>'
    container = f'<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">{root}</container>'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("b.opf", package)
        for name, chapter in files.items():
            archive.writestr(name, f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{chapter}</body></html>')
    return path


def rewrite(file: Path, pattern: str, instead: str) -> None:
    """Replaces what a regular expression matches in all parts of a file; `instead` is taken as it is."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, re.sub(pattern, lambda _: instead, part))
