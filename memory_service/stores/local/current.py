"""What a knowledge base's folder says of it: which generation is present, and whether it was found damaged.

CURRENT    the name of the present generation with its CRC-32C; replaced whole
DAMAGED    what the process that writes found wrong, for those that only read and do not compare everything
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import google_crc32c

from memory_model.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.local.disk import replace_file
from memory_service.stores.local.generation import Generation

_CURRENT, _DAMAGED = "CURRENT", "DAMAGED"


def write_current(folder: Path, name: str) -> None:
    """Makes a generation the present one; durable when it returns."""
    replace_file(folder / _CURRENT, _current_line(name))


def _current_line(name: str) -> bytes:
    return f"{name} {google_crc32c.value(name.encode()):08x}\n".encode()


def state_of(folder: Path) -> tuple[int, int]:
    """Changes whenever CURRENT is replaced."""
    try:
        found = os.stat(folder / _CURRENT)
    except FileNotFoundError:
        raise KnowledgeBaseDamaged(f"{_CURRENT} is missing") from None
    return found.st_ino, found.st_mtime_ns


def follow_current(folder: Path, dimension: int) -> tuple[tuple[int, int], Generation]:
    """The present generation for reading, and the state of CURRENT that named it."""
    while True:
        state = state_of(folder)
        name = read_current(folder)
        try:
            return state, Generation.open(folder / name, dimension, writable=False)
        except Memory3Error:
            if state_of(folder) == state:  # otherwise the next generation has just taken its place
                raise


def read_current(folder: Path) -> str:
    """The name of the present generation; raises KnowledgeBaseDamaged."""
    if not folder.is_dir():
        raise KnowledgeBaseDamaged(f"its folder {folder.name} is missing")
    path = folder / _CURRENT
    if not path.is_file():
        raise KnowledgeBaseDamaged(f"{_CURRENT} is missing")
    line = path.read_bytes()
    name = line.decode("latin-1").partition(" ")[0]
    if line != _current_line(name):
        raise KnowledgeBaseDamaged(f"{_CURRENT} is not what was written")
    return name


def mark_damaged(folder: Path, problem: str) -> None:
    """Leaves word of what is wrong, or takes it back where `problem` is empty; as far as the disk allows."""
    with contextlib.suppress(OSError):
        if problem:
            replace_file(folder / _DAMAGED, problem.encode())
        else:
            (folder / _DAMAGED).unlink(missing_ok=True)


def refuse_marked(folder: Path) -> None:
    """Raises KnowledgeBaseDamaged where another process left word of damage."""
    path = folder / _DAMAGED
    if path.exists():
        raise KnowledgeBaseDamaged(path.read_text(errors="replace"))
