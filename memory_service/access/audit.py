"""The audit log: one JSON line for every write and act of administration: who, what, where and with which outcome.

Those that were refused stand there too, but nobody may fill the disk with them: each key has so many lines at once and
so many a second, and callers of whom no key is known share theirs. The next line says how many were left out.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from memory_model.errors import MissingFile
from memory_service.access.authorization import Access
from memory_service.ops.logs import logger

AUDITED = frozenset(
    f"/memory.v1.{name}"
    for name in (
        "Ingestion/Ingest",
        "Ingestion/Upsert",
        "Ingestion/Delete",
        "KnowledgeBases/CreateKnowledgeBase",
        "KnowledgeBases/DeleteKnowledgeBase",
        "KnowledgeBases/ExportKnowledgeBase",
    )
)

REFUSALS_AT_ONCE = 100
REFUSALS_PER_S = 1.0
"""Some 25 MB a day of a key that is refused without end."""


class _File(WatchedFileHandler):
    """Opens the file again when logrotate has moved it; a full disk is reported, not raised into a call."""

    def handleError(self, record: logging.LogRecord) -> None:  # the name is logging's
        logger().error("audit_line_lost", line=record.getMessage(), exc_info=True)


class AuditLog:
    """Appends to one file, which is the owner's only."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises MissingFile when the file cannot be written: a service that must keep a log does not start."""
        self._clock = clock
        self._refusals: dict[str, _Allowance] = {}
        try:
            path.touch(mode=0o600)
            self._file = _File(path, encoding="utf-8")
        except OSError as error:
            raise MissingFile(f"the audit log {path} cannot be written: {error.strerror}") from error

    def write(self, event: str, access: Access | None, **fields: Any) -> None:
        """One line, in the file when this returns. access: None where nobody is known."""
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "event": event,
            "key": access.key_id if access else None, "tenant": access.tenant if access else None,
            **{name: value for name, value in fields.items() if value not in ("", None)},
        }  # fmt: skip
        self._file.emit(logging.makeLogRecord({"msg": json.dumps(line, ensure_ascii=False), "args": ()}))

    def write_refusal(self, event: str, access: Access | None, **fields: Any) -> None:
        """A line for a call that changed nothing because it was refused, as long as its key has any left."""
        key_id, now = access.key_id if access else "", self._clock()
        allowance = self._refusals.setdefault(key_id, _Allowance(REFUSALS_AT_ONCE, now, access))
        if allowance.take(now):
            self.write(event, access, **fields, left_out=allowance.left_out or None)
            allowance.left_out = 0

    def close(self) -> None:
        """Says what was left out, and closes the file."""
        for allowance in self._refusals.values():
            if allowance.left_out:
                self.write("RefusalsLeftOut", allowance.access, left_out=allowance.left_out)
        self._refusals.clear()
        self._file.close()


@dataclass
class _Allowance:
    """Lines that one key has left, when that was so, and how many refusals have none."""

    lines: float
    at: float
    access: Access | None
    left_out: int = 0

    def take(self, now: float) -> bool:
        self.lines = min(REFUSALS_AT_ONCE, self.lines + (now - self.at) * REFUSALS_PER_S)
        self.at = now
        if self.lines < 1:
            self.left_out += 1
            return False
        self.lines -= 1
        return True
