"""Word, Excel and PowerPoint files of 1997 to 2003: what kind a file really is, tables of Word, and what is left out.

The converter of `office` reads them. Of a `.doc` it gives the main text alone, with a tab after each cell and two after
each row, and the codes of fields. Layouts: MS-DOC 2.5.1 (FibBase) and 2.5.5 (FibRgLw97).
"""

from __future__ import annotations

import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from memory3.formats.readers.tables import table_lines

SUFFIXES = (".doc", ".dot", ".xls", ".xlt", ".ppt", ".pps")
_OFFICE = "application/vnd.openxmlformats-officedocument"
_ZIPPED = (
    ("word/", f"{_OFFICE}.wordprocessingml.document"),
    ("xl/", f"{_OFFICE}.spreadsheetml.sheet"),
    ("ppt/", f"{_OFFICE}.presentationml.presentation"),
)
HTML, RTF = "text/html", "application/rtf"
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"
MIME_OF = {
    **{f".{suffix}": mime for (_, mime), suffix in zip(_ZIPPED, ("docx", "xlsx", "pptx"), strict=True)},
    ".odt": f"{_OPEN_DOCUMENT}.text",
    ".ods": f"{_OPEN_DOCUMENT}.spreadsheet",
    ".odp": f"{_OPEN_DOCUMENT}.presentation",
    ".odg": f"{_OPEN_DOCUMENT}.graphics",
    ".rtf": RTF,
}
"""Of today's kinds, most of which an old name may hide."""
SUFFIX_OF = {mime: suffix for suffix, mime in MIME_OF.items()}
_SECTOR = 512
_FIB = b"\xec\xa5"
_CHARACTERS = 76
_READ_AT_LEAST = 0.8
"""Of the characters: the text has line ends instead of some marks."""
_SEPARATORS = 13
"""Characters that Word keeps among headers where there is none."""
_PARTS = (  # of FibRgLw97, with the offset of their number of characters
    ("footnotes", 80),
    ("headers and footers", 84),
    ("comments", 92),
    ("endnotes", 96),
    ("text boxes", 100),
    ("text boxes", 104),
)
_FIELD = re.compile(
    r'[ ]?\b(?:HYPERLINK|PAGEREF|INCLUDEPICTURE|DOCPROPERTY|TOC)(?:[ ]+(?:\\\*[ ]?\w+|\\\S|"[^"\n]*"|_\w+))+'
    r"|[ ]?\b[A-Z]{3,}[ ]+_(?:Toc|Ref)\d+(?:[ ]+\\\S)*|[ ]?\bEMBED[ ]+[A-Z]\w*(?:\.\w+)+(?:[ ]+\\\S)*"
    r"|[ ]?\bFORM(?:TEXT|CHECKBOX|DROPDOWN)\b|\\\*[ ]?(?:MERGEFORMAT|CHARFORMAT)\b"
)
"""Codes of fields whose form no text has; in other languages than English, PAGEREF has another name."""


def real_type(source: Path) -> str | None:
    """The MIME type of a file that only has the name of an old one; None: its suffix is right, or nothing is known."""
    with source.open("rb") as file:
        head = file.read(1024).lstrip()
    if head.startswith(b"{\\rtf"):
        return RTF
    if re.match(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|meta|table)", head, re.IGNORECASE):
        return HTML
    if not zipfile.is_zipfile(source):
        return None
    with zipfile.ZipFile(source) as archive:
        names = archive.namelist()
        declared = archive.read("mimetype").decode("ascii", "replace") if "mimetype" in names else ""
    if declared.startswith(_OPEN_DOCUMENT):
        return declared.strip().removesuffix("-template")
    return next((mime for folder, mime in _ZIPPED if any(name.startswith(folder) for name in names)), None)


@dataclass(frozen=True)
class WordHead:
    """What the head of a Word file says.

    characters: of the main text, codes of fields included. left_out: parts with text that the converter does not read.
    """

    encrypted: bool = False
    characters: int = 0
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: bytes) -> WordHead:
        """The head is at the begin of a sector; one that is not found says nothing."""
        for start in range(_SECTOR, len(data) - 108, _SECTOR):
            if data.startswith(_FIB, start):
                break
        else:
            return cls()
        encrypted = bool(struct.unpack_from("<H", data, start + 10)[0] & 0x100)
        counts = ((name, struct.unpack_from("<i", data, start + offset)[0]) for name, offset in _PARTS)
        found = (name for name, count in counts if count > (_SEPARATORS if name.startswith("headers") else 2))
        (characters,) = struct.unpack_from("<i", data, start + _CHARACTERS)
        return cls(encrypted, characters, tuple(dict.fromkeys(found)))

    def notes(self, read: str) -> list[str]:
        """What is missing in the text that was read."""
        notes = [f"{', '.join(self.left_out)} not read: save it as .docx"] if self.left_out else []
        if len(read) < _READ_AT_LEAST * self.characters:
            notes.append(f"{len(read):,} of {self.characters:,} characters read: save it as .docx")
        return notes


def word_text(plain: str) -> str:
    """The converter's text of a Word file without the codes of fields, tables as "column: value" lines."""
    return "\n".join(_line(line) for line in _FIELD.sub("", plain).split("\n"))


def _line(line: str) -> str:
    table, ends, rest = line.rpartition("\t\t")  # a row whose cell has several lines goes on below
    after = " ".join(rest.replace("\t", " ").split())
    if not ends:
        return after
    cells = f"{table}{ends}".split("\t")
    for width in range(2, len(cells)):
        if (len(cells) - 1) % (width + 1) == 0 and not any(cells[width :: width + 1]):
            rows = [cells[start : start + width] for start in range(0, len(cells) - 1, width + 1)]
            break
    else:  # rows of different widths; a cell that is empty ends one too
        rows = [row.split("\t") for row in table.split("\t\t")]
    return "\n".join([*table_lines(rows), *([after] if after else [])])
