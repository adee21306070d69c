"""Where documents go: a knowledge base of a service, and what it has already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc

from memory_service.client.connection import connected
from memory_service.client.rows import Row
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

_OVERHEAD_BYTES = 1 << 16


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
            return models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest(), timeout=60)

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
        """The rows, at most 1000; documents that the knowledge base has, with their memories, are done."""
        keys = sorted({row.key for row in rows if row.item is not None and row.key})
        stored: dict[str, pb.DocumentVersion] = {}
        if keys:
            with connected(self.address) as channel:
                stub = ingestion_pb2_grpc.IngestionStub(channel)
                request = pb.GetVersionsRequest(knowledge_base=self.knowledge_base, document_keys=keys)
                versions = stub.GetVersions(request, timeout=60).versions
                stored = {version.document_key: version for version in versions}
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
