"""Text as it is: notes, logs and source code; and notebooks, whose cells are text, code and what it printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memory3.formats.document import FileDocument, title_of
from memory3.formats.encoding import decode
from memory3.formats.readers.markup.markdown import markdown_text
from memory3.formats.readers.markup.typography import sentence
from memory3.printable import counted

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def read_text(source: Path) -> Iterator[FileDocument]:
    """Plain text; the file's name is the title."""
    return _read(source, title_of(source))


def read_code(source: Path) -> Iterator[FileDocument]:
    """Source code, settings and logs; the file's name with its suffix is the title."""
    return _read(source, source.name)


def _read(source: Path, title: str) -> Iterator[FileDocument]:
    try:
        read = decode(source.read_bytes())
    except UnicodeDecodeError as error:
        yield FileDocument.failed(source, error)
        return
    text = _ESCAPES.sub("", read.text)
    if "\0" in text:
        yield FileDocument.failed(source, "it is binary, no text: it holds NUL characters")
    else:
        yield FileDocument(str(source), str(source), title, text).noted(read.note)


def read_notebook(source: Path) -> Iterator[FileDocument]:
    """A Jupyter notebook: the text of Markdown, code, and outputs as text; the first heading is the title."""
    read = decode(source.read_bytes())
    try:
        notebook = json.loads(read.text)
        cells = notebook.get("cells") or [cell for sheet in notebook["worksheets"] for cell in sheet["cells"]]
        title, blocks, pictures = "", list[str](), 0
        for cell in cells:
            text = _joined(cell.get("source", cell.get("input", "")))
            if cell.get("cell_type") == "markdown":
                heading, text = markdown_text(text)
                if heading and not title and not blocks:
                    title = heading
                elif heading:
                    text = f"{sentence(heading)}\n\n{text}"
            blocks.append(text)
            for output in cell.get("outputs") or ():
                shown, picture = _output(output)
                blocks.append(shown)
                pictures += picture
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        yield FileDocument.broken(source, "notebook", error)
        return
    text = "\n\n".join(block.strip() for block in blocks if block.strip())
    note = f"{counted(pictures, 'picture')} in outputs not read" if pictures else ""
    yield FileDocument(str(source), str(source), title or title_of(source), text).noted(read.note, note)


def _output(output: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of an output, and whether there is a picture in it."""
    if output.get("output_type") == "error":
        return f"{output.get('ename', 'Error')}: {output.get('evalue', '')}", False
    data = output.get("data") or {}
    text = _joined(output.get("text") or data.get("text/plain") or data.get("text/markdown") or "")
    return _ESCAPES.sub("", text), any(str(kind).startswith("image/") for kind in data)


def _joined(lines: Any) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else str(lines)
