"""Texts of Excel files of 1997 to 2003 (.xls) outside of cells: comments, text boxes, and printed headers and footers.

The converter of `office` leaves them out. Layouts: MS-XLS 2.4.136 (Header), 2.4.181 (Obj), 2.4.329 (TxO).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from memory3.formats.document import COMPOUND
from memory3.formats.libraries import imported
from memory3.formats.readers.markup.typography import words

SUFFIXES = (".xls", ".xlt")
_HEADER, _FOOTER, _CONTINUE, _OBJECT, _TEXT = 0x0014, 0x0015, 0x003C, 0x005D, 0x01B6
_EDGES = {_HEADER: "Printed header", _FOOTER: "Printed footer"}
_COMMENT = 0x19


def records(stream: bytes) -> Iterator[tuple[int, int, int]]:
    """The kind of each record of a workbook, where its content begins, and its length, as far as they are whole."""
    at = 0
    while at + 4 <= len(stream):
        kind, length = struct.unpack_from("<HH", stream, at)
        if at + 4 + length > len(stream):
            return
        yield kind, at + 4, length
        at += 4 + length


def texts_of(data: bytes) -> list[tuple[str, str]]:
    """Labels and texts in the order of the file; none of one that is no workbook, or damaged.

    Those of headers and footers have the codes of their fonts and fields.
    """
    if not data.startswith(COMPOUND):
        return []
    try:
        with imported("olefile").OleFileIO(io.BytesIO(data)) as file:
            return list(_texts(file.openstream("Workbook").read())) if file.exists("Workbook") else []
    except (OSError, struct.error):
        return []


def _texts(stream: bytes) -> Iterator[tuple[str, str]]:
    label, text, left = "", "", 0
    for kind, start, length in records(stream):
        if kind == _CONTINUE and left and length:
            part = _characters(stream, start, length, left)
            text, left = text + part, left - len(part)
            if not left:
                yield label, "\n".join(filter(None, map(words, text.splitlines())))
            continue
        left = 0
        if kind in _EDGES and length > 3:
            (characters,) = struct.unpack_from("<H", stream, start)
            yield _EDGES[kind], _characters(stream, start + 2, length - 2, characters)
        elif kind == _OBJECT and length >= 6:
            label = "Comment" if struct.unpack_from("<H", stream, start + 4)[0] == _COMMENT else "Text box"
        elif kind == _TEXT and length >= 12:
            text, left = "", struct.unpack_from("<H", stream, start + 10)[0]


def _characters(stream: bytes, start: int, length: int, most: int) -> str:
    """A string whose first byte says whether its characters have one byte or two."""
    body = stream[start + 1 : start + length]
    if stream[start] & 1:
        return body[: 2 * most].decode("utf-16-le", "replace")
    return body[:most].decode("latin-1")
