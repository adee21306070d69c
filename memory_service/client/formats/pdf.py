"""PDF: the file is the document, its pages' text one after another; pages that are only pictures have none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memory_service.client.formats.source_document import SourceDocument, imported
from memory_service.client.formats.text import title_of


def read(source: Path) -> Iterator[SourceDocument]:
    """One document; a page that cannot be read fails it, since a document with a hole would look whole."""
    pypdf = imported("pypdf")
    key, page_number = str(source), 0
    try:
        with pypdf.PdfReader(source) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                yield SourceDocument(source, 0, key, error="it is encrypted: store it without a password")
                return
            title = (reader.metadata.title if reader.metadata else None) or title_of(source)
            pages = []
            for page_number, page in enumerate(reader.pages, 1):  # noqa: B007
                pages.append(page.extract_text().strip())
    except (
        Exception
    ) as error:  # a broken PDF shows itself by any error; it must not end the ingestion of others
        place = f"page {page_number + 1}" if page_number else ""
        yield SourceDocument(source, 0, key, error=f"it is no readable PDF: {error}", place=place)
        return
    text = "\n\n".join(page for page in pages if page)
    if not text:
        message = f"no text on its {len(pages)} pages: recognise scanned pages (OCR) first"
        yield SourceDocument(source, 0, key, error=message)
        return
    yield SourceDocument(source, 0, key, str(title), text.encode("utf-8", "replace").decode())
