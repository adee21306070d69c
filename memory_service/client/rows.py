"""A document on its way through an ingestion, from a file to its outcome, and the place that it goes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from memory_service.client.connection import connected, details_of
from memory_service.client.formats import SourceDocument, read_documents
from memory_service.stores.identity import WriterIdentity
from memory_service.write.content_hash import text_hash_of
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import (
    ingestion_pb2_grpc,
    knowledge_bases_pb2,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
)

_KEYS_ASKED = 1000
_OVERHEAD_BYTES = 1 << 16
_OUTCOMES = {
    pb.INGEST_OUTCOME_REPLACED: "replaced",
    pb.INGEST_OUTCOME_UNCHANGED: "unchanged",
}


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
    def of(cls, document: SourceDocument) -> Row:
        """A document as it was read; one that cannot be read has failed already."""
        row = cls(str(document.source), document.place, document.key)
        if document.error:
            return row.failed("UNREADABLE", document.error)
        text = pb.Document(
            key=document.key, title=document.title, text=document.text, metadata=document.metadata
        )
        return replace(row, item=pb.IngestItem(document=text))

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


def read_rows(source: Path, typed: Path | None = None) -> Iterator[Row]:
    """The documents of one file; a file that is the document is named as it was `typed`."""
    for document in read_documents(source):
        key = str(typed) if typed and document.key == str(source) else document.key
        yield Row.of(replace(document, source=typed or source, key=key))


@dataclass(frozen=True)
class Destination:
    """The knowledge base that documents go to, and how they are cut. Methods raise RemoteError.

    memory_writing, overlap_tokens: see IngestStart.
    """

    address: str
    knowledge_base: str
    overlap_tokens: int = 0
    memory_writing: pb.MemoryWriting = pb.MEMORY_WRITING_UNSPECIFIED

    def start(self) -> pb.IngestStart:
        """Opens a stream there."""
        return pb.IngestStart(
            knowledge_base=self.knowledge_base, memory_writing=self.memory_writing,
            overlap_tokens=self.overlap_tokens,
        )  # fmt: skip

    def identity(self) -> WriterIdentity:
        """Of the model that the service runs."""
        made = self.describe()
        return WriterIdentity(
            made.model_id, made.codec_id, made.memory_format_id, made.embedder_id, made.dimension
        )

    def describe(self) -> models_pb2.DescribeResponse:
        """What the service runs."""
        with connected(self.address) as channel:
            stub = models_pb2_grpc.ModelsStub(channel)
            answer: models_pb2.DescribeResponse = stub.Describe(models_pb2.DescribeRequest(), timeout=60)
            return answer

    def require(self, *, create: bool) -> None:
        """Raises where there is no such knowledge base; creates it where `create` is set."""
        with connected(self.address) as channel:
            bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
            try:
                request = knowledge_bases_pb2.GetKnowledgeBaseRequest(name=self.knowledge_base)
                bases.GetKnowledgeBase(request, timeout=30)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND or not create:
                    raise
                new = knowledge_bases_pb2.CreateKnowledgeBaseRequest(name=self.knowledge_base)
                bases.CreateKnowledgeBase(new, timeout=30)

    def without_unchanged(self, rows: Sequence[Row]) -> list[Row]:
        """The rows; documents that the knowledge base has, with their memories, are done."""
        keys = sorted({row.key for row in rows if row.item is not None and row.key})
        stored: dict[str, pb.DocumentVersion] = {}
        if keys:
            with connected(self.address) as channel:
                stub = ingestion_pb2_grpc.IngestionStub(channel)
                for begin in range(0, len(keys), _KEYS_ASKED):
                    request = pb.GetVersionsRequest(
                        knowledge_base=self.knowledge_base, document_keys=keys[begin : begin + _KEYS_ASKED]
                    )
                    response = stub.GetVersions(request, timeout=60)
                    stored |= {version.document_key: version for version in response.versions}
        return [self._unchanged(row, stored.get(row.key)) for row in rows]

    def _unchanged(self, row: Row, version: pb.DocumentVersion | None) -> Row:
        if row.item is None or version is None or not version.memories_written:
            return row
        same = self.content_hash(row.item.document) == version.content_hash
        return row.done("unchanged", version.reference_count) if same else row

    def content_hash(self, text: pb.Document) -> bytes:
        """That of a document which goes there."""
        return text_hash_of(text.title, text.metadata, text.text, self.overlap_tokens)


def pieces(item: pb.IngestItem, message_bytes: int) -> Iterator[pb.IngestItem]:
    """The item, or its prepared references in items that each fit into a message (0: no limit)."""
    fits = not message_bytes or item.ByteSize() + _OVERHEAD_BYTES <= message_bytes
    if fits or not item.HasField("prepared"):
        yield item
        return
    whole = item.prepared
    piece = pb.PreparedDocument()
    piece.CopyFrom(whole)
    piece.ClearField("references")
    piece.continued = True
    size = piece.ByteSize() + _OVERHEAD_BYTES
    for reference in whole.references:
        more = reference.ByteSize() + 16
        if size + more > message_bytes and piece.references:
            yield pb.IngestItem(sequence=item.sequence, prepared=piece)
            piece, size = pb.PreparedDocument(key=whole.key, continued=True), _OVERHEAD_BYTES
        piece.references.append(reference)
        size += more
    piece.continued = False
    yield pb.IngestItem(sequence=item.sequence, prepared=piece)
