"""Small Word, Excel and PowerPoint files of 1997: compound files of a few streams, each as long as sectors need."""

import struct
from collections.abc import Sequence
from pathlib import Path

SECTOR, LEAST = 512, 4096
"""Bytes: of a sector, and of a stream that lies in sectors of its own."""
END, NONE, FAT = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD


def compound(path: Path, streams: dict[str, bytes]) -> Path:
    """[MS-CFB]: one FAT sector, one or two of the directory, then the streams."""
    bodies = {name: body.ljust(max(LEAST, -len(body) % SECTOR + len(body)), b"\0") for name, body in streams.items()}
    directory = -(-(len(bodies) + 1) // 4)
    fat = [FAT, *range(2, 1 + directory), END]
    starts = {}
    for name, body in bodies.items():
        starts[name] = len(fat)
        fat += [*range(len(fat) + 1, len(fat) + len(body) // SECTOR), END]
    assert len(fat) <= SECTOR // 4, "one sector of the FAT"
    names = sorted(bodies, key=lambda name: (len(name), name.upper()))  # as they are to be ordered

    entries = [entry("Root Entry", 5, END, 0, child=1)]
    for number, name in enumerate(names, 1):
        right = number + 1 if number < len(names) else NONE
        entries.append(entry(name, 2, starts[name], len(bodies[name]), right))
    header = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16) + struct.pack("<5H", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<9I", 0, 1, 1, 0, LEAST, END, 0, END, 0) + struct.pack("<I", 0)
    header = header.ljust(SECTOR, b"\xff")
    table = b"".join(struct.pack("<I", number) for number in fat).ljust(SECTOR, b"\xff")
    path.write_bytes(header + table + b"".join(entries).ljust(directory * SECTOR, b"\0") + b"".join(bodies.values()))
    return path


def entry(name: str, kind: int, start: int, size: int, right: int = NONE, child: int = NONE) -> bytes:
    """One of the directory."""
    encoded = name.encode("utf-16-le")
    head = encoded.ljust(64, b"\0") + struct.pack("<HBB", len(encoded) + 2, kind, 1)
    return head + struct.pack("<III", NONE, right, child) + bytes(36) + struct.pack("<IQ", start, size)


def write_doc(path: Path, text: str, *, footnotes: int = 0, claimed: int = 0, encrypted: bool = False) -> Path:
    """A Word file: "\\r" ends a paragraph, "\\a" a cell, and two of them a row.

    footnotes, claimed: characters that it claims to have of footnotes, and of its main text instead of those it has.
    """
    words = text.encode("cp1252")
    fib = bytearray(2048)
    struct.pack_into("<HH", fib, 0, 0xA5EC, 0xC1)
    struct.pack_into("<H", fib, 10, 0x0200 | (0x0100 if encrypted else 0))  # its table is 1Table
    struct.pack_into("<H", fib, 32, 14)
    struct.pack_into("<H", fib, 62, 22)
    struct.pack_into("<ii", fib, 24, len(fib), len(fib) + len(words))
    struct.pack_into("<i", fib, 64, len(fib) + len(words))
    struct.pack_into("<iii", fib, 76, claimed or len(words), footnotes, 0)
    struct.pack_into("<H", fib, 152, 93)
    piece = struct.pack("<II", 0, len(words)) + struct.pack("<HIH", 0, 2 * len(fib) | 1 << 30, 0)
    clx = b"\x02" + struct.pack("<I", len(piece)) + piece
    struct.pack_into("<II", fib, 0x1A2, 0, len(clx))
    return compound(path, {"WordDocument": bytes(fib) + words, "1Table": clx})


def write_xls(
    path: Path,
    rows: Sequence[Sequence[str | float]],
    step: tuple[int, int] = (1, 1),
    chart: Sequence[float] = (),
    further: Sequence[tuple[int, bytes]] = (),
) -> Path:
    """An Excel file of one sheet, "Sheet1"; an empty text is no cell.

    step: rows and columns from one cell to the next. chart: the values of a chart in the sheet. further: records after
    the cells.
    """

    def record(kind: int, body: bytes) -> bytes:
        return struct.pack("<HH", kind, len(body)) + body

    def begin(kind: int) -> bytes:
        return record(0x0809, struct.pack("<HHHHII", 0x0600, kind, 0, 1997, 0, 0))

    def text(value: str, width: str) -> bytes:
        return struct.pack(f"<{width}B", len(value), 1) + value.encode("utf-16-le")

    head = begin(0x0005)
    name = text("Sheet1", "B")
    start = len(head) + len(record(0x0085, struct.pack("<IH", 0, 0) + name)) + len(record(0x000A, b""))
    book = head + record(0x0085, struct.pack("<IH", start, 0) + name) + record(0x000A, b"") + begin(0x0010)
    for number, row in enumerate(rows):
        for column, value in enumerate(row):
            place = struct.pack("<HHH", number * step[0], column * step[1], 0)
            if value == "":
                continue
            if isinstance(value, str):
                book += record(0x0204, place + text(value, "H"))
            else:
                book += record(0x0203, place + struct.pack("<d", value))
    if chart:
        shown = (record(0x0203, struct.pack("<HHHd", number, 0, 0, value)) for number, value in enumerate(chart))
        book += begin(0x0020) + b"".join(shown) + record(0x000A, b"")
    book += b"".join(record(kind, body) for kind, body in further)
    return compound(path, {"Workbook": book + record(0x000A, b"")})


def write_ppt(path: Path, *texts: str) -> Path:
    """A PowerPoint file: a slide for each text."""

    def record(kind: int, body: bytes, version: int = 0, instance: int = 0) -> bytes:
        return struct.pack("<HHI", version | instance << 4, kind, len(body)) + body

    slides = b""
    for number, text in enumerate(texts):
        slides += record(0x03F3, struct.pack("<IIIII", number + 1, 0, 1, 256 + number, 0))
        slides += record(0x0F9F, struct.pack("<I", 0)) + record(0x0FA0, text.encode("utf-16-le"))
    document = record(0x03E8, record(0x0FF0, slides, 15), 15)
    user = record(0x0FF6, struct.pack("<IIIHHBBH", 20, 0xE391C05F, 0, 0, 1012, 3, 0, 0))
    return compound(path, {"Current User": user, "PowerPoint Document": document})
