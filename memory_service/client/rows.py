"""A document on its way through an ingestion, from a file to its outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memory_model.formats.document import FileDocument, where
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
    def of(cls, read: FileDocument) -> Row:
        """A document as it was read, or failed with the reason why it could not be."""
        row = cls(read.source, read.place, read.key)
        if read.unreadable:
            return row.failed("UNREADABLE", read.unreadable)
        document = pb.Document(key=read.key, title=read.title, text=read.text, metadata=read.metadata)
        return replace(row, item=pb.IngestItem(document=document))

    @property
    def where(self) -> str:
        """For people: the file, the place in it, and the key where it is another name."""
        return where(self.source, self.place, self.key)

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
