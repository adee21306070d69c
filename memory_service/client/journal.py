"""How far the ingestion of each file has come, so that the same command goes on after Ctrl-C.

The journal only saves work: writing is idempotent by content hash, so a lost one costs time, never data.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

JOURNAL_VERSION = 1


def state_folder() -> Path:
    """Where journals lie: `$XDG_STATE_HOME/memory-service`, by default under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "memory-service"


class Journal:
    """Which documents of one file, as it is now, have their answer from one knowledge base, as it was created."""

    def __init__(self, folder: Path, source: Path, address: str, knowledge_base: str, created: str) -> None:
        """Reads the journal of an earlier run, unless the file or the knowledge base is another by now."""
        stat = source.stat()
        self._identity = {
            "version": JOURNAL_VERSION,
            "source": str(source.resolve()),
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "address": address,
            "knowledge_base": knowledge_base,
            "created": created,
        }
        name = hashlib.sha256(
            json.dumps([str(source.resolve()), address, knowledge_base]).encode()
        ).hexdigest()[:32]
        self.path = folder / f"{name}.json"
        self._prefix = 0
        self._beyond: set[int] = set()
        self._failed: set[int] = set()
        self._dirty = False
        self._load()

    def _load(self) -> None:
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
            if {name: state.get(name) for name in self._identity} == self._identity:
                self._prefix = int(state["answered"])
                self._failed = {int(number) for number in state["failed"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # no journal, or a broken one: everything is sent again

    def has(self, number: int) -> bool:
        """Whether document `number` is stored; failed ones are tried again."""
        return (number < self._prefix or number in self._beyond) and number not in self._failed

    @property
    def has_failures(self) -> bool:
        """Whether a document of the file was refused."""
        return bool(self._failed)

    def answer(self, number: int, *, failed: bool) -> None:
        """Notes that document `number` has its answer."""
        self._dirty = True
        (self._failed.add if failed else self._failed.discard)(number)
        if number >= self._prefix:
            self._beyond.add(number)
        while self._prefix in self._beyond:
            self._beyond.discard(self._prefix)
            self._prefix += 1

    def save(self) -> None:
        """Writes the journal, whole or not at all."""
        if not self._dirty:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {**self._identity, "answered": self._prefix, "failed": sorted(self._failed)}
        temporary = self.path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(self.path)
        self._dirty = False

    def remove(self) -> None:
        """The file is done: the next run starts afresh, and finds everything unchanged."""
        self.path.unlink(missing_ok=True)
