"""A saved session: the SQLite file of the conversation's own memories with one more table, or that table alone."""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

from edge_client.local.database import connected, disk_errors
from memory_model.errors import CorruptFile, MissingFile

VERSION = 3


def write_session(path: Path, header: dict[str, Any], past: bytes) -> None:
    """Write the file beside its place and move it there; raises StorageError and then changes nothing.

    past: the file of the conversation's memories; empty where it has none.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    said = json.dumps({**header, "past": bool(past)})
    try:
        with disk_errors(path):
            beside.write_bytes(past)
            with closing(connected(beside)) as file:
                file.execute("DROP TABLE IF EXISTS session")  # of the file that it was loaded from
                file.execute("CREATE TABLE session (version INTEGER, header TEXT, sha256 TEXT)")
                file.execute("INSERT INTO session VALUES (?, ?, ?)", (VERSION, said, _digest(said)))
                file.execute("PRAGMA journal_mode = DELETE")  # one file alone
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_session(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and memories of a file, checked; raises MissingFile, CorruptFile, StorageError."""
    if not path.is_file():
        raise MissingFile(f"no session at {path}: save one with ChatSession.save or /save")
    with disk_errors(path):
        with closing(connected(path)) as file:
            version, said, digest = file.execute("SELECT version, header, sha256 FROM session").fetchone()
        if version != VERSION:
            raise CorruptFile(f"{path} has session format {version}, this program reads {VERSION}")
        if _digest(said) != digest:
            raise CorruptFile(f"{path} was changed since it was saved (SHA-256 differs)")
        header = json.loads(said)
        return header, path.read_bytes() if header["past"] else b""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
