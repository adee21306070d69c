"""The audit log: one JSON line for every write and act of administration: who, what, where and with which outcome."""

from __future__ import annotations

import json
import logging
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


class _File(WatchedFileHandler):
    """Opens the file again when logrotate has moved it; a full disk is reported, not raised into a call."""

    def handleError(self, record: logging.LogRecord) -> None:  # the name is logging's
        logger().error("audit_line_lost", line=record.getMessage(), exc_info=True)


class AuditLog:
    """Appends to one file, which only its owner may read."""

    def __init__(self, path: Path) -> None:
        """Raises MissingFile when the file cannot be written: a service that must keep a log does not start."""
        try:
            path.touch(mode=0o600)
            self._file = _File(path, encoding="utf-8")
        except OSError as error:
            raise MissingFile(f"the audit log {path} cannot be written: {error.strerror}") from error

    def write(self, event: str, access: Access, **fields: Any) -> None:
        """One line, in the file when this returns; empty fields are left out."""
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "event": event,
            "key": access.key_id or None, "tenant": access.tenant or None,
            **{name: value for name, value in fields.items() if value not in ("", None)},
        }  # fmt: skip
        self._file.emit(logging.makeLogRecord({"msg": json.dumps(line, ensure_ascii=False), "args": ()}))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
