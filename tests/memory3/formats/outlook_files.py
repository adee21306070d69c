"""Small messages of Outlook: properties in a compound file with folders, of MS-CFB and MS-OXMSG."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.memory3.formats.office97_files import END, FAT, LEAST, NONE, SECTOR, entry

MINI = 64
SUBJECT, TRANSPORT, CLASS, BODY, HTML, RTF, CODE_PAGE = 0x0037, 0x007D, 0x001A, 0x1000, 0x1013, 0x1009, 0x3FFD
SENDER, SENDER_ADDRESS, SENT = 0x0C1A, 0x5D01, 0x0039
NAME, ADDRESS, KIND = 0x3001, 0x39FE, 0x0C15
DATA, LONG_NAME, MIME, LINK = 0x3701, 0x3707, 0x370E, 0x370D
Value = str | bytes | int | datetime.datetime
Folder = dict[str, "bytes | Folder"]


def folder(properties: Mapping[int, Value], head: int, code_page: str = "") -> Folder:
    """A storage of properties. head: bytes before the table. code_page: of strings, which else are UTF-16."""
    table, found = bytes(head), Folder()
    for number, value in properties.items():
        if isinstance(value, datetime.datetime):
            ticks = (value - datetime.datetime(1601, 1, 1, tzinfo=datetime.timezone.utc)) // datetime.timedelta(
                microseconds=1
            )
            table += struct.pack("<IIQ", number << 16 | 0x40, 6, ticks * 10)
        elif isinstance(value, int):
            table += struct.pack("<IIii", number << 16 | 3, 6, value, 0)
        else:
            kind = 0x102 if isinstance(value, bytes) else 0x1E if code_page else 0x1F
            raw = value if isinstance(value, bytes) else value.encode(code_page or "utf-16-le", "surrogatepass")
            found[f"__substg1.0_{number:04X}{kind:04X}"] = raw
            table += struct.pack("<IIII", number << 16 | kind, 6, len(raw), 0)
    return {"__properties_version1.0": table, **found}


def message(
    properties: Mapping[int, Value],
    receivers: Sequence[Mapping[int, Value]] = (),
    attachments: Sequence[Mapping[int, Value] | Folder] = (),
    *,
    code_page: str = "",
    head: int = 32,
) -> Folder:
    """A message; an attachment with texts as keys is a message with head=24."""
    found = folder(properties, head, code_page)
    for number, one in enumerate(receivers):
        found[f"__recip_version1.0_#{number:08X}"] = folder(one, 8, code_page)
    for number, one in enumerate(attachments):
        inner = {name: part for name, part in one.items() if isinstance(name, str)}
        plain = {name: part for name, part in one.items() if isinstance(name, int)}
        attached = folder(plain, 8, code_page)
        if inner:
            attached["__substg1.0_3701000D"] = inner
        found[f"__attach_version1.0_#{number:08X}"] = attached
    return found


def write(path: Path, root: Folder) -> Path:
    """One sector of the FAT; small streams in the stream of the root, in sectors of 64 bytes."""
    entries: list[bytes] = [b""]
    small, mini_fat, large = b"", [], []

    def add(name: str, part: bytes | Folder, right: int) -> int:
        nonlocal small
        number = len(entries)
        entries.append(b"")
        if isinstance(part, dict):
            entries[number] = entry(name, 1, 0, 0, right, children(part))
        elif len(part) < LEAST:
            start, count = len(mini_fat), -(-len(part) // MINI)
            mini_fat.extend([*range(start + 1, start + count), END] if count else [])
            small += part.ljust(count * MINI, b"\0")
            entries[number] = entry(name, 2, start if count else END, len(part), right)
        else:
            large.append((number, name, part, right))
        return number

    def children(part: Folder) -> int:
        right = NONE
        for name in sorted(part, key=lambda name: (len(name), name.upper()), reverse=True):
            right = add(name, part[name], right)
        return right

    child = children(root)
    directory = -(-len(entries) // 4)
    fat = [FAT, *range(2, 1 + directory), END]

    def chain(length: int) -> int:
        start, count = len(fat), -(-length // SECTOR)
        fat.extend([*range(start + 1, start + count), END])
        return start

    mini_table = b"".join(struct.pack("<I", number) for number in mini_fat).ljust(SECTOR, b"\xff")
    mini_start, small_start = chain(len(mini_table)), chain(len(small))
    bodies = [mini_table, small]
    for number, name, part, right in large:
        entries[number] = entry(name, 2, chain(len(part)), len(part), right)
        bodies.append(part)
    entries[0] = entry("Root Entry", 5, small_start, len(small), NONE, child)
    assert len(fat) <= SECTOR // 4, "one sector of the FAT"
    header = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16) + struct.pack("<5H", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<9I", 0, 1, 1, 0, LEAST, mini_start, 1, END, 0) + struct.pack("<I", 0)
    table = b"".join(struct.pack("<I", number) for number in fat).ljust(SECTOR, b"\xff")
    whole = [header.ljust(SECTOR, b"\xff"), table, b"".join(entries), *bodies]
    path.write_bytes(b"".join(part.ljust(-(-len(part) // SECTOR) * SECTOR, b"\0") for part in whole))
    return path
