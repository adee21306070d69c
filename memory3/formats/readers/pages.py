"""PDF files and scans: a document for each page that has text, with its number as metadata `page`.

`page_layout` puts the words of a page in order, and form fields and comments follow. Pages without text are read by OCR
where the extra `ocr` is installed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from memory3.errors import InvalidInput, MissingFile
from memory3.formats.document import ENCRYPTED, FileDocument, title_of, useful_title
from memory3.formats.libraries import imported
from memory3.formats.readers.page_layout import LIGATURES, is_unknown, lines_of, ordered, page_text, whole_sentences
from memory3.printable import counted

IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
_OCR_DPI = 200
_NO_COMMENTS = ("/Link", "/Popup", "/Movie", "/Screen", "/PrinterMark", "/TrapNet", "/Watermark", "/3D")
"""Kinds of annotations whose contents describe something else, or repeat it (ISO 32000-1, 12.5.6)."""
for _library in ("pypdf", "pdfminer"):  # what they say of a broken file is told by our own error
    logging.getLogger(_library).addHandler(logging.NullHandler())


@dataclass
class _Pages:
    """The pages of a PDF as they are read, and their numbers by what is to be said of them.

    texts: of all pages; empty where nothing was found. unknown: the page of each character that has none.
    """

    source: Path
    texts: list[str] = field(default_factory=list)
    without: list[int] = field(default_factory=list)
    recognised: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    failed: list[FileDocument] = field(default_factory=list)

    def read(self, number: int, page: Any, reader: Any) -> None:
        """Add a page of pdfplumber, by pypdf's `reader` where pdfplumber cannot read it."""
        text = ""
        try:
            text = self._laid_out(number, page)
        except Exception as error:  # a broken page shows itself by any error; the others are read
            text = _plain_text(reader, number)
            if text:
                self.plain.append(number)
            else:
                failed = FileDocument.failed(self.source, f"it cannot be read: {error}", f"page {number}")
                self.failed.append(failed)
        self.texts.append(text)
        page.close()

    def _laid_out(self, number: int, page: Any) -> str:
        """The text of a page in reading order, by OCR where it has none; raises whatever pdfplumber raises."""
        text = page_text(page)
        lost = sum(map(is_unknown, page.chars))
        if text.strip():
            self.unknown += [number] * lost
            return text
        if (lost or _has_image(page)) and _ocr():
            text = _recognised(page.to_image(resolution=_OCR_DPI).original)
        (self.recognised if text else self.without).append(number)
        return text

    def notes(self, total: int) -> list[str]:
        """What was not read, or otherwise than usual, of this many pages."""
        notes = []
        if self.without:
            help_ = "" if _ocr() else ": the extra ocr reads scanned pages"
            notes.append(f"no text on {_numbers(self.without)} of {total}{help_}")
        if self.recognised:
            notes.append(f"{_numbers(self.recognised)} of {total} read by OCR")
        if self.plain:
            why = "because of a fault in the file"
            notes.append(f"{_numbers(self.plain)} of {total} read without columns and tables, {why}")
        if self.unknown:
            on = _numbers(list(dict.fromkeys(self.unknown)))
            lost = counted(len(self.unknown), "character")
            notes.append(f"{lost} on {on} not read: their fonts do not say which they are")
        return notes


def read_pdf(source: Path) -> Iterator[FileDocument]:
    """A document for each page with text; a page that cannot be read fails alone."""
    pypdf, pdfplumber = imported("pypdf"), imported("pdfplumber")
    pages = _Pages(source)
    documents: list[FileDocument] = []
    try:
        with pypdf.PdfReader(source) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                raise InvalidInput(ENCRYPTED)
            title = useful_title(reader.metadata.title if reader.metadata else "") or title_of(source)
            added = _annotations(reader)
            embedded = _embedded(reader)
            total = len(reader.pages)
            with pdfplumber.open(source, password="") as pdf:
                for number, page in enumerate(pdf.pages, 1):
                    pages.read(number, page, reader)
        for number, text in enumerate(whole_sentences(pages.texts), 1):
            lines = "\n".join(line for line in (text, *added.get(number, ())) if line)
            if lines.strip():
                clean = lines.encode("utf-8", "replace").decode()
                key, metadata = _key(source, number, total), {"page": str(number)}
                documents.append(FileDocument(str(source), key, title, clean, metadata, f"page {number}"))
    except MissingFile:
        raise
    except Exception as error:  # as of a page; it must not end the ingestion of other files
        yield FileDocument.broken(source, "PDF", error)
        return
    notes = pages.notes(total)
    if embedded:
        notes.append(f"{counted(embedded, 'embedded file')} in it not read")
    yield from pages.failed
    if documents:
        yield documents[0].noted(*notes)
        yield from documents[1:]
    elif not pages.failed:
        yield FileDocument.failed(source, notes[0] if notes else "it has no pages")


def _plain_text(reader: Any, number: int) -> str:
    """The text of a page as pypdf finds it, which does not look at what is drawn; empty where it cannot be read."""
    try:
        return str(reader.pages[number - 1].extract_text()).translate(LIGATURES).strip()
    except Exception:
        return ""


def count_pages(source: Path) -> int:
    """Pages of a PDF; 1 where it cannot be read."""
    try:
        with imported("pypdf").PdfReader(source) as reader:
            return max(1, len(reader.pages))
    except Exception:
        return 1


def read_image(source: Path) -> Iterator[FileDocument]:
    """The text of a scan or a photograph, by OCR."""
    image = imported("PIL.Image", "ocr")
    imported("rapidocr_onnxruntime", "ocr")
    try:
        with image.open(source) as opened:
            text = _recognised(opened.convert("RGB"))
    except Exception as error:  # as above
        yield FileDocument.broken(source, "image", error)
        return
    if text:
        yield FileDocument(str(source), str(source), title_of(source), text).noted("read by OCR")
    else:
        yield FileDocument.failed(source, "no text was recognised in it")


def _key(source: Path, number: int, total: int) -> str:
    """A page's; a file of one page is the document."""
    return str(source) if total == 1 else f"{source}#page={number}"


def _numbers(pages: Sequence[int]) -> str:
    """Pages 2-4 and 7."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and page == runs[-1][-1] + 1:
            runs[-1].append(page)
        else:
            runs.append([page])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"page{'s' if len(pages) > 1 else ''} {shown}"


def _annotations(reader: Any) -> dict[int, list[str]]:
    """Lines of what is added to a page, by its number: fields that are filled in, comments, and typed text."""
    found: dict[int, list[str]] = {}
    for number, page in enumerate(reader.pages, 1):
        for reference in page.get("/Annots") or ():
            one = reference.get_object()
            kind = one.get("/Subtype")
            if kind == "/Widget":
                line = _filled_in(one)
            else:
                words = "" if kind in _NO_COMMENTS else " ".join(str(one.get("/Contents") or "").split())
                line = f"Comment: {words}" if words and kind != "/FreeText" else words
            if line and line not in found.setdefault(number, []):
                found[number].append(line)
    return found


def _filled_in(widget: Any) -> str:
    """A field of a form as "field: value"; empty where it is not filled in."""
    names: list[str] = []
    value: Any = None
    label = ""
    part: Any = widget
    for _ in range(32):  # a field inherits from those it is in
        if (name := part.get("/T")) is not None:
            names.insert(0, str(name))
        value = part.get("/V") if value is None else value
        label = label or str(part.get("/TU") or "")
        if "/Parent" not in part:
            break
        part = part["/Parent"].get_object()
    shown = _field_value(value)
    name = " ".join(label.split()) or names[-1] if names else label
    return f"{name.rstrip(':')}: {shown}" if shown and name else ""


def _embedded(reader: Any) -> int:
    """Files that are attached."""
    with contextlib.suppress(Exception):  # of a broken list of them
        return sum(len(files) for files in reader.attachments.values())
    return 0


def _field_value(value: Any) -> str:
    """Text, a choice, or the name of a button's state; empty where it is off."""
    if value is None:
        return ""
    value = value.get_object() if hasattr(value, "get_object") else value
    if isinstance(value, list):
        return ", ".join(filter(None, map(_field_value, value)))
    text = " ".join(str(value).split())
    if text.startswith("/"):
        return {"/Off": "", "/Yes": "yes", "/On": "yes", "/1": "yes"}.get(text, text[1:])
    return text


def _has_image(page: Any) -> bool:
    return bool(page.images) or bool(page.curves) or bool(page.rects)


@cache
def _ocr() -> Any:
    """The recogniser of the extra `ocr`; None where it is not installed."""
    try:
        from memory3.runtime.onnx_runtime import ort as ort  # its telemetry is off before the recogniser loads it

        return imported("rapidocr_onnxruntime", "ocr").RapidOCR()
    except MissingFile:
        return None


def _recognised(image: Any) -> str:
    """The text of an image in reading order."""
    import numpy as np

    found, _ = _ocr()(np.asarray(image.convert("RGB")))
    words = []
    for corners, text, _ in found or ():
        xs, ys = [corner[0] for corner in corners], [corner[1] for corner in corners]
        words.append({"text": text, "x0": min(xs), "x1": max(xs), "top": min(ys), "bottom": max(ys)})
    return "\n".join(line.text for block in ordered(words) for line in lines_of(block))
