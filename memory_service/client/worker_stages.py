"""The stages of a distributed ingestion, as its workers run them; they know nothing of who runs them.

read      files -> documents
prepare   what the store holds already drops out; the others are cut into references
write     references -> vectors and memories, by a model of the worker's own
send      to the service's ingestion stream, which checks them, stores them and acknowledges

Each takes rows (`travelling.Travelling`) and gives as many back. A stage that runs again, because its worker was
killed, does no harm: the service answers `unchanged` to what it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import grpc

from memory_model.errors import Memory3Error
from memory_service.client.connection import Connection
from memory_service.client.formats import read_documents
from memory_service.client.item_sender import send_items
from memory_service.client.remote import remote_error
from memory_service.client.travelling import Travelling
from memory_service.errors import DocumentEmpty, EncodingFailed, described
from memory_service.ops.logs import logger
from memory_service.settings import Settings
from memory_service.stores.identity import WriterIdentity, require_same
from memory_service.write.content_hash import text_hash_of
from memory_service.write.document import checked
from memory_service.write.encoder import Encoder, ModelEncoder, Splitter
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc, models_pb2, models_pb2_grpc

_ITEM_OVERHEAD_BYTES = 1 << 16
_KEYS_ASKED = 1000
_OUTCOMES = {
    pb.INGEST_OUTCOME_STORED: "stored",
    pb.INGEST_OUTCOME_REPLACED: "replaced",
    pb.INGEST_OUTCOME_UNCHANGED: "unchanged",
}


class ModelOfWorker(Protocol):
    """How a worker comes to the model. Travels to the workers, so it is small and can be pickled."""

    def splitter(self, reference_tokens: int) -> Callable[[str, str, int], list[str]]:
        """Cuts texts as Encoder.split does."""

    def encoder(self) -> Encoder:
        """Loads the model: once in each worker that writes."""


@dataclass(frozen=True)
class ModelOfSettings:
    """The model that settings name. Paths are absolute and lead to the same files on every worker."""

    values: dict[str, Any]

    def splitter(self, reference_tokens: int) -> Callable[[str, str, int], list[str]]:
        """See ModelOfWorker."""
        return Splitter.load(Settings(**self.values), reference_tokens)

    def encoder(self) -> Encoder:
        """See ModelOfWorker."""
        return ModelEncoder(Settings(**self.values))


@dataclass(frozen=True)
class Destination:
    """Where documents go and how they are cut; address and key are read as the commands read them."""

    address: str
    knowledge_base: str
    overlap_tokens: int = 0

    def start(self) -> pb.IngestStart:
        """Opens a stream there."""
        return pb.IngestStart(
            knowledge_base=self.knowledge_base, memory_writing=pb.MEMORY_WRITING_NOW,
            overlap_tokens=self.overlap_tokens,
        )  # fmt: skip

    def describe(self) -> models_pb2.DescribeResponse:
        """What the service runs; raises RemoteError."""
        with self._channel() as channel:
            request = models_pb2.DescribeRequest()
            stub = models_pb2_grpc.ModelsStub(channel)
            answer: models_pb2.DescribeResponse = stub.Describe(request, wait_for_ready=True, timeout=60)
            return answer

    def versions(self, keys: Sequence[str]) -> dict[str, pb.DocumentVersion]:
        """What is stored of these documents; raises RemoteError."""
        found: dict[str, pb.DocumentVersion] = {}
        with self._channel() as channel:
            stub = ingestion_pb2_grpc.IngestionStub(channel)
            for begin in range(0, len(keys), _KEYS_ASKED):
                request = pb.GetVersionsRequest(
                    knowledge_base=self.knowledge_base, document_keys=keys[begin : begin + _KEYS_ASKED]
                )
                response = stub.GetVersions(request, wait_for_ready=True, timeout=60)
                found |= {version.document_key: version for version in response.versions}
        return found

    @contextlib.contextmanager
    def _channel(self) -> Iterator[grpc.Channel]:
        """Without an event loop: a stage runs on whatever thread its worker gives it."""
        with Connection().blocking_channel(self.address) as channel:
            try:
                yield channel
            except grpc.RpcError as error:
                raise remote_error(error, self.address) from error


def read(source: Path, typed: Path) -> Iterator[Travelling]:
    """The documents of one file, at its absolute path; it is named as it was typed."""
    for document in read_documents(source):
        key = str(typed) if document.key == str(source) else document.key
        yield Travelling.of(replace(document, source=typed, key=key))


class Prepare:
    """Leaves out what is stored, cuts the rest. What is too large for one message stays text: the service writes it."""

    def __init__(self, destination: Destination, model: ModelOfWorker) -> None:
        described = destination.describe()
        self._destination = destination
        self._split = model.splitter(described.reference_tokens)
        self._message_bytes = described.limits.request_bytes - _ITEM_OVERHEAD_BYTES
        self._reference_bytes = described.limits.payload_bytes + 4 * described.dimension

    def __call__(self, rows: Sequence[Travelling]) -> list[Travelling]:
        """One batch."""
        items = [row.parsed() if not row.outcome else None for row in rows]
        keys = sorted({item.document.key for item in items if item is not None and item.document.key})
        stored = self._destination.versions(keys) if keys else {}
        return [
            row if item is None else self._prepared(row, item.document, stored)
            for row, item in zip(rows, items, strict=True)
        ]

    def _prepared(
        self, row: Travelling, text: pb.Document, stored: dict[str, pb.DocumentVersion]
    ) -> Travelling:
        overlap = self._destination.overlap_tokens
        content_hash = text_hash_of(text.title, text.metadata, text.text, overlap)
        version = stored.get(text.key)
        if version is not None and version.content_hash == content_hash and version.memories_written:
            return row.done("unchanged", version.reference_count)
        if text.ByteSize() > self._message_bytes:
            return row.failed(
                "DOCUMENT_TOO_LARGE",
                f"{text.ByteSize()} bytes are more than the service takes in one message: cut it into several",
            )
        try:
            references = self._split(text.text, text.title, overlap) if text.text.strip() else []
            if not references:
                raise DocumentEmpty("the document has no text", field="text")
        except Memory3Error as error:
            return _refused(row, error)
        if sum(self._reference_bytes + len(part.encode()) for part in references) > self._message_bytes:
            return row
        prepared = pb.PreparedDocument(
            key=text.key, title=text.title, metadata=text.metadata, content_hash=content_hash,
            references=[pb.PreparedReference(text=part) for part in references],
        )  # fmt: skip
        return row.with_item(pb.IngestItem(prepared=prepared))


class Write:
    """Embeds and writes. Loads the model, and refuses to work for a service that runs another one."""

    def __init__(self, destination: Destination, model: ModelOfWorker) -> None:
        """Raises an IdentityMismatch."""
        self._encoder = model.encoder()
        theirs = destination.describe()
        identity = WriterIdentity(
            theirs.model_id, theirs.codec_id, theirs.memory_format_id, theirs.embedder_id, theirs.dimension
        )
        ours = self._encoder.description.identity
        require_same(identity, ours, "give the workers the service's model, codec and bundle")

    def __call__(self, rows: Sequence[Travelling]) -> list[Travelling]:
        """One batch, its references together; where that fails, document by document."""
        items = {place: item for place, row in enumerate(rows) if (item := _to_write(row)) is not None}
        try:
            self._fill(list(items.values()))
        except Exception as error:
            if len(items) > 1:
                return [result for row in rows for result in self([row])]
            return [_refused(row, error) if _to_write(row) is not None else row for row in rows]
        return [row.with_item(items[place]) if place in items else row for place, row in enumerate(rows)]

    def _fill(self, items: Sequence[pb.IngestItem]) -> None:
        references = [reference for item in items for reference in item.prepared.references]
        if not references:
            return
        made = self._encoder.encode([reference.text for reference in references])
        made = checked(made, len(references), self._encoder.description.identity.dimension)
        for reference, vector, payload in zip(references, made.vectors, made.payloads, strict=True):
            reference.embedding = vector.astype("<f4").tobytes()
            reference.payload = payload


class Send:
    """Sends, and turns the answers into outcomes."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def __call__(self, rows: Sequence[Travelling]) -> list[Travelling]:
        """One batch, one stream; raises RemoteError."""
        items = {}
        for place, row in enumerate(rows):
            if not row.outcome:
                items[place] = row.parsed()
                items[place].sequence = place + 1
        if not items:
            return list(rows)
        to = self._destination
        answers = send_items(to.address, to.start(), list(items.values()))
        return [
            _answered(row, answers[place + 1]) if place in items else row for place, row in enumerate(rows)
        ]


def _to_write(row: Travelling) -> pb.IngestItem | None:
    item = row.parsed() if not row.outcome else None
    return item if item is not None and item.WhichOneof("content") == "prepared" else None


def _answered(row: Travelling, answer: pb.IngestResponse) -> Travelling:
    if answer.WhichOneof("message") == "failed":
        return row.failed(answer.failed.reason, answer.failed.message)
    acknowledged = answer.acknowledged
    return row.done(_OUTCOMES.get(acknowledged.outcome, "stored"), acknowledged.reference_count)


def _refused(row: Travelling, error: Exception) -> Travelling:
    if not isinstance(error, Memory3Error):
        logger().error("encoding_failed", document_key=row.key, exc_info=error)
        error = EncodingFailed(
            "the model could not turn this document into memories; the worker's log has the cause"
        )
    _, reason, message, _ = described(error)
    return row.failed(reason, message)
