"""Files of Excel without the rows and columns that have no values, whose cells move together.

The converter of `office` fills the rectangle around all cells of a sheet: A1 and IV65536 alone take 3.5 GB. It leaves
out a sheet whose rectangle is too large and nearly empty. Layouts: ECMA-376, part 1, 18.3.1.4; MS-XLSB 2.1.4;
MS-XLS 2.1.4.
"""

from __future__ import annotations

import io
import itertools
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator

from memory3.errors import InvalidInput
from memory3.formats.document import ENCRYPTED
from memory3.formats.libraries import imported
from memory3.formats.readers.office import sheets97

MIME_OF = {
    ".xls": "application/vnd.ms-excel",
    ".xlt": "application/vnd.ms-excel",
    ".xlsb": "application/vnd.ms-excel.sheet.binary.macroEnabled.12",
}
MOST_CELLS = 4 << 20
"""Of the rectangle around the values of a sheet, for which the converter takes 0.9 GB; a document has at most 4 MiB."""
_ZIPPED = (".xlsx", ".xlsb")
_PART = re.compile(r"xl/worksheets/[^/]+\.(?:xml|bin)")
_BLANK = re.compile(r"<(?:\w+:)?c\b[^>]*/>")
_ROW = re.compile(
    r"(?P<head><(?:\w+:)?row\b[^>]*?)(?:/>|>\s*</(?:\w+:)?row>|(?P<cells>>.*?)(?P<end></(?:\w+:)?row>))", re.DOTALL
)
_ROW_NUMBER = re.compile(r'(?<=\sr=")\d+(?=")')
_PLACE = re.compile(r'(?P<cell><(?:\w+:)?c\b[^>]*?\sr=")(?P<column>[A-Z]+)\d+(?=")')
_ROW_HEAD, _SIZE = 0, 148
_CELLS = frozenset((*range(2, 12), 62))
"""Records of cells with a value; a blank one is 1."""
_STREAMS = ("Workbook", "Book")
_BEGIN, _END, _ENCRYPTED, _DIMENSIONS, _SEVERAL, _BLANK_CELL = 0x0809, 0x000A, 0x002F, 0x0200, 0x00BD, 0x0201
_OLD_CELLS = frozenset((0x0006, 0x00D6, 0x00FD, 0x0203, 0x0204, 0x0205, 0x027E, _SEVERAL))


def compact(data: bytes, suffix: str) -> bytes:
    """A file of Excel whose sheets have no rows and columns without values; other files stay as they are.

    suffix: of its kind. Raises InvalidInput if the rows and columns with values have more than MOST_CELLS cells, and
    for an encrypted .xls.
    """
    if suffix in sheets97.SUFFIXES:
        return _compact_workbook(data)
    if suffix not in _ZIPPED or not zipfile.is_zipfile(io.BytesIO(data)):
        return data
    copy = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(copy, "w") as written:
        for name in dict.fromkeys(archive.namelist()):
            part = archive.read(name)
            if _PART.fullmatch(name):
                part = _compact_xml(part) if name.endswith(".xml") else _compact_binary(part)
            written.writestr(name, part)
    return copy.getvalue()


def _numbered(used: Iterable[int]) -> dict[int, int]:
    """Rows or columns with values, numbered from 0 without gaps."""
    return {old: new for new, old in enumerate(sorted(set(used)))}


def _check(rows: int, columns: int) -> None:
    if rows * columns > MOST_CELLS:
        size = f"{rows:,} rows and {columns:,} columns with values"
        raise InvalidInput(f"a sheet in it has {size}, and at most {MOST_CELLS:,} cells are read: divide it")


def _compact_xml(part: bytes) -> bytes:
    """A sheet of an .xlsx; one in another encoding than UTF-8 stays as it is."""
    try:
        sheet = _BLANK.sub("", part.decode())
    except UnicodeDecodeError:
        return part
    columns = sorted({place["column"] for place in _PLACE.finditer(sheet)}, key=lambda name: (len(name), name))
    _check(sum(1 for row in _ROW.finditer(sheet) if row["cells"]), len(columns))
    names = {old: _letters(new) for new, old in enumerate(columns)}
    numbers = itertools.count(1)

    def renumbered(row: re.Match[str]) -> str:
        if not row["cells"]:
            return ""
        number = next(numbers)
        cells = _PLACE.sub(lambda place: f"{place['cell']}{names[place['column']]}{number}", row["cells"])
        return f"{_ROW_NUMBER.sub(str(number), row['head'])}{cells}{row['end']}"

    return _ROW.sub(renumbered, sheet).encode()


def _letters(column: int) -> str:
    """The name of a column that is numbered from 0: A, Z, AA."""
    name = ""
    while column >= 0:
        name, column = chr(ord("A") + column % 26) + name, column // 26 - 1
    return name


def _compact_binary(part: bytes) -> bytes:
    """A sheet of an .xlsb: a record with the number of each row, and after it one for each cell with its column."""
    row = 0
    heads: list[tuple[int, int]] = []  # offset in the part, row
    cells: list[tuple[int, int]] = []  # offset in the part, column
    filled: set[int] = set()
    sizes: list[int] = []
    for kind, start, length in _binary_records(part):
        if kind == _ROW_HEAD and length >= 4:
            row = struct.unpack_from("<I", part, start)[0]
            heads.append((start, row))
        elif kind in _CELLS and length >= 4:
            filled.add(row)
            cells.append((start, struct.unpack_from("<I", part, start)[0]))
        elif kind == _SIZE and length >= 16:
            sizes.append(start)
    rows, columns = _numbered(filled), _numbered(column for _, column in cells)
    _check(len(rows), len(columns))
    new = bytearray(part)
    for start, row in heads:
        struct.pack_into("<I", new, start, rows.get(row, 0))
    for start, column in cells:
        struct.pack_into("<I", new, start, columns[column])
    for start in sizes:
        struct.pack_into("<4I", new, start, 0, max(0, len(rows) - 1), 0, max(0, len(columns) - 1))
    return bytes(new)


def _binary_records(part: bytes) -> Iterator[tuple[int, int, int]]:
    """The kind of each record, where its content begins, and its length, as far as they are whole."""
    at = 0
    while at < len(part):
        kind, at = _seven_bits(part, at, 2)
        length, at = _seven_bits(part, at, 4)
        if at + length > len(part):
            return
        yield kind, at, length
        at += length


def _seven_bits(part: bytes, at: int, most: int) -> tuple[int, int]:
    """A number in bytes that each hold seven bits of it, lowest first, and where the next one begins."""
    number = 0
    for shift in range(0, 7 * most, 7):
        if at >= len(part):
            break
        byte = part[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            break
    return number, at


def _compact_workbook(data: bytes) -> bytes:
    """An .xls: its sheets follow one another in one stream. A damaged one stays as it is."""
    olefile = imported("olefile")
    copy = io.BytesIO(data)
    try:
        with olefile.OleFileIO(copy, write_mode=True) as file:
            for name in filter(file.exists, _STREAMS):
                stream = file.openstream(name).read()
                file.write_stream(name, _compact_stream(stream))
            return copy.getvalue()
    except (OSError, struct.error):
        return data


def _compact_stream(stream: bytes) -> bytes:
    """The sheets of an .xls, each from a record of its begin to one of its end; charts in it have theirs."""
    new = bytearray(stream)
    depth = 0
    cells: list[tuple[int, int]] = []  # offset of a record in the stream, and of its last column
    sizes: list[tuple[int, int]] = []  # offset and length
    for kind, start, length in sheets97.records(stream):
        if kind == _ENCRYPTED:
            raise InvalidInput(ENCRYPTED)
        if kind == _BEGIN:
            depth += 1
        elif kind == _END:
            depth -= 1
            if depth == 0:
                _renumber(new, cells, sizes)
                cells, sizes = [], []
        elif kind in _OLD_CELLS and depth > 1:  # what a chart shows, which the converter takes for cells of the sheet
            struct.pack_into("<H", new, start - 4, _BLANK_CELL)
        elif kind in _OLD_CELLS and length >= 6:
            cells.append((start, start + (length - 2 if kind == _SEVERAL else 2)))
        elif kind == _DIMENSIONS and depth == 1:
            sizes.append((start, length))
    return bytes(new)


def _renumber(stream: bytearray, cells: list[tuple[int, int]], sizes: list[tuple[int, int]]) -> None:
    """Renumber the rows and columns of a sheet of an .xls in place. cells, sizes: as in `_compact_stream`."""
    places = [(start, last, *struct.unpack_from("<HH", stream, start), _short(stream, last)) for start, last in cells]
    rows = _numbered(row for _, _, row, _, _ in places)
    columns = _numbered(column for *_, first, final in places for column in range(first, final + 1))
    _check(len(rows), len(columns))
    for start, last, row, first, final in places:
        if first <= final:
            struct.pack_into("<HH", stream, start, rows[row], columns[first])
            struct.pack_into("<H", stream, last, columns[final])
    for start, length in sizes:
        form = "<IIHH" if length >= 14 else "<HHHH"
        if length >= struct.calcsize(form):
            struct.pack_into(form, stream, start, 0, len(rows), 0, len(columns))


def _short(stream: bytearray, at: int) -> int:
    return int.from_bytes(stream[at : at + 2], "little")
