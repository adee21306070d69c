"""A document on its way through an ingestion, from a file to its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memory_service.client.connection import details_of
from protos.memory.v1 import ingestion_pb2 as pb

_OUTCOMES = {pb.INGEST_OUTCOME_REPLACED: "replaced", pb.INGEST_OUTCOME_UNCHANGED: "unchanged"}


@dataclass(frozen=True)
class Row:
    """One document. source, place: the file and where in it, for people; item: the document, gone at the end.

    outcome: empty while it is on its way; then stored, replaced, unchanged, or failed with its reason.
    """

    source: str
    place: str
    key: str
    item: pb.IngestItem | None = None
    outcome: str = ""
    references: int = 0
    reason: str = ""
    message: str = ""

    @classmethod
    def of(
        cls, source: Path, key: str, title: str, text: str, metadata: Mapping[str, str] | None = None, place: str = ""
    ) -> Row:  # fmt: skip
        """A document as it was read. place: where in the file, such as "line 3"; empty where the file is it."""
        document = pb.Document(key=key, title=title, text=text, metadata=metadata)
        return cls(str(source), place, key, pb.IngestItem(document=document))

    @classmethod
    def unreadable(cls, source: Path, error: Exception | str, place: str = "") -> Row:
        """What cannot be read; the error says why."""
        message = str(error) or type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            message = f"not valid UTF-8 at byte {error.start}: convert the file"
        return cls(str(source), place, str(source)).failed("UNREADABLE", message)

    def named(self, typed: Path) -> Row:
        """With the file as it was typed, which also names the document where the file is one."""
        if self.key != self.source:
            return replace(self, source=str(typed))
        if self.item is not None:
            self.item.document.key = str(typed)
        return replace(self, source=str(typed), key=str(typed))

    @property
    def where(self) -> str:
        """For people: the file, the place in it, and the key where it is another name."""
        parts = [self.source, self.place, f"key {self.key}" if self.key != self.source else ""]
        return ", ".join(part for part in parts if part)

    def done(self, outcome: str, references: int = 0) -> Row:
        """With its outcome."""
        return replace(self, item=None, outcome=outcome, references=references)

    def failed(self, reason: str, message: str) -> Row:
        """Refused."""
        return replace(self, item=None, outcome="failed", reason=reason, message=message)

    def answered(self, response: pb.IngestResponse) -> Row:
        """With the service's answer."""
        if response.HasField("failed"):
            status = response.failed.status
            return self.failed(details_of(status)[0], status.message)
        acknowledged = response.acknowledged
        return self.done(_OUTCOMES.get(acknowledged.outcome, "stored"), acknowledged.reference_count)
