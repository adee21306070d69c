"""What is noted of a call while it is answered: for the audit log and the metrics at its end."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class CallRecord:
    """One call. outcomes: answers to documents of an Ingest stream, by what became of them. reason: of its refusal."""

    knowledge_base: str = ""
    reason: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)


record: ContextVar[CallRecord | None] = ContextVar("record", default=None)
