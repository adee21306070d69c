"""store.json: which knowledge bases a local store has. It is replaced whole; folders it does not name are nobody's."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import google_crc32c

from memory_service.errors import StoreUnavailable
from memory_service.stores import KnowledgeBase
from memory_service.stores.identity import WriterIdentity
from memory_service.stores.local.disk import disk_errors, replace_file

DATA_FORMAT = 1
_FILE = "store.json"


class Register:
    """The knowledge bases by name. Numbers are never used twice. Not thread-safe."""

    def __init__(self, folder: Path, *, writable: bool = True) -> None:
        """Reads the file, or makes one in an empty folder; raises StoreUnavailable for one that is not ours."""
        self._path = folder / _FILE
        self._state = (0, 0)
        self.next_number = 1
        self.bases: dict[str, KnowledgeBase] = {}
        if self._path.is_file():
            self._read()
        elif not writable:
            raise StoreUnavailable(f"there is no store at {folder}: a service that writes makes one")
        elif left := [path.name for path in folder.glob("kb-*")]:
            raise StoreUnavailable(
                f"the store at {folder} has lost {_FILE}, which names its knowledge bases"
                f" ({len(left)} folders are there): restore a backup"
            )
        else:
            self._write()

    def follow(self) -> bool:
        """Reads the file again if another process replaced it; whether it did."""
        with disk_errors(f"reading {_FILE}"):
            if self._state_of() == self._state:
                return False
            self._read()
            return True

    def _state_of(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_ino, found.st_mtime_ns

    def add(self, base: KnowledgeBase) -> None:
        """Durable when it returns; raises without a trace of it when that fails."""
        before = self.next_number, dict(self.bases)
        self.bases[base.name] = base
        self.next_number = max(self.next_number, base.number + 1)
        self._write_or_go_back(before)

    def remove(self, name: str) -> None:
        """As `add`."""
        before = self.next_number, dict(self.bases)
        self.bases.pop(name, None)
        self._write_or_go_back(before)

    def _write_or_go_back(self, before: tuple[int, dict[str, KnowledgeBase]]) -> None:
        try:
            with disk_errors(f"writing {_FILE}"):
                self._write()
        except BaseException:
            self.next_number, self.bases = before
            raise

    def _write(self) -> None:
        listed = [
            {
                "number": base.number, "name": base.name, "description": base.description,
                "created_ms": round(base.created_at.timestamp() * 1000), "identity": asdict(base.identity),
            }
            for base in self.bases.values()
        ]  # fmt: skip
        content = {"format": DATA_FORMAT, "next_number": self.next_number, "knowledge_bases": listed}
        replace_file(self._path, _text(content))

    def _read(self) -> None:
        try:
            state = self._state_of()
            raw = self._path.read_bytes()
            content = json.loads(raw)["store"]
            if raw != _text(content):
                raise ValueError("it is not what was written")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreUnavailable(f"{self._path} is damaged ({error}): restore a backup") from error
        if content["format"] != DATA_FORMAT:
            raise StoreUnavailable(
                f"{self._path} has data format {content['format']}, this version reads {DATA_FORMAT}:"
                " start the version that wrote it"
            )
        self.next_number = content["next_number"]
        bases: dict[str, KnowledgeBase] = {}
        for listed in content["knowledge_bases"]:
            created_at = datetime.fromtimestamp(listed["created_ms"] / 1000, timezone.utc)
            identity = WriterIdentity(**listed["identity"])
            base = KnowledgeBase(
                listed["number"], listed["name"], listed["description"], identity, created_at
            )
            bases[base.name] = base
        self.bases, self._state = bases, state


def _text(content: dict[str, Any]) -> bytes:
    crc = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    return json.dumps({"crc32c": f"{crc:08x}", "store": content}, indent=1, sort_keys=True).encode()
