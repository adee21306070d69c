"""Documents into a service: a row is a document on its way, a destination where it goes, an ingestion sends it.

Documents up, outcomes down, through lost connections and a store that is away.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import grpc

from memory3.channel import details_of
from memory3.formats.document import FileDocument, where
from memory3.printable import counted
from memory_service.client.connection import Connection, RemoteError, connected, remote_error
from memory_service.stores.store import WriterIdentity
from memory_service.write.document import text_hash_of
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import (
    ingestion_pb2_grpc,
    knowledge_bases_pb2,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
)

_WINDOW = 256
"""Documents that are sent and not answered."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_LOOK_AGAIN_S = 0.01
KEYS_AT_ONCE = 1000
"""Documents of one call."""
_DELETE_TIMEOUT_S = 600
_OVERHEAD_BYTES = 1 << 16
_OUTCOMES = {pb.INGEST_OUTCOME_REPLACED: "replaced", pb.INGEST_OUTCOME_UNCHANGED: "unchanged"}


@dataclass(frozen=True)
class Row:
    """One document. source, place: the file and the position in it, to display; item: the document, gone at the end.

    outcome: empty while it is on its way; then stored, replaced, unchanged, or failed with its reason. notes: what was
    assumed while reading.
    """

    source: str
    place: str
    key: str
    item: pb.IngestItem | None = None
    outcome: str = ""
    references: int = 0
    reason: str = ""
    message: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, read: FileDocument) -> Row:
        """A document as it was read, or failed with the reason why it could not be."""
        row = cls(read.source, read.place, read.key, notes=read.notes)
        if read.unreadable:
            return row.failed("UNREADABLE", read.unreadable)
        document = pb.Document(key=read.key, title=read.title, text=read.text, metadata=read.metadata)
        return replace(row, item=pb.IngestItem(document=document))

    @property
    def where(self) -> str:
        """The file, the position in it, and the key if it differs, to display."""
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
            return self.failed(details_of(status).reason, status.message)
        acknowledged = response.acknowledged
        return self.done(_OUTCOMES.get(acknowledged.outcome, "stored"), acknowledged.reference_count)


@dataclass(frozen=True)
class Destination:
    """The knowledge base that documents go to, and how they are cut. Methods raise RemoteError.

    memory_writing, overlap_tokens: see IngestStart.
    """

    address: str
    knowledge_base: str
    overlap_tokens: int = 0
    memory_writing: pb.MemoryWriting = pb.MEMORY_WRITING_UNSPECIFIED

    def identity(self) -> WriterIdentity:
        """Of the model that the service runs."""
        made = self.describe()
        return WriterIdentity(made.model_id, made.codec_id, made.memory_format_id, made.embedder_id, made.dimension)

    def describe(self) -> models_pb2.DescribeResponse:
        """What the service runs."""
        with connected(self.address) as channel:
            return models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest(), timeout=60)

    def require(self, *, create: bool) -> bool:
        """Raises where there is no such knowledge base; creates it, and returns True, where `create` is set."""
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
                return True
            return False

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

        def checked(row: Row) -> Row:
            version = stored.get(row.key)
            if row.item is None or version is None or not version.memories_written:
                return row
            same = self.content_hash(row.item.document) == version.content_hash
            return row.done("unchanged", version.reference_count) if same else row

        return [checked(row) for row in rows]

    def content_hash(self, text: pb.Document) -> bytes:
        """That of a document which goes there."""
        return text_hash_of(text.title, text.metadata, text.text, self.overlap_tokens)


class Ingestion:
    """One ingestion into one knowledge base. Use once, from one thread; `interrupt` may be called from any.

    The service answers documents that it has already as unchanged. A lost connection and a failure that the service
    calls retryable are tried again, after RetryInfo or a pause that doubles, up to `attempts` times in a row without an
    answer in between.
    """

    def __init__(self, to: Destination, *, attempts: int = 10) -> None:
        """attempts: ten are some 45 s, in which a service loads its model and store."""
        self._to = to
        self._attempts = attempts
        self._message_bytes = 0
        self._source: Iterator[Row] = iter(())
        self._broken: Exception | None = None  # what reading the source raised
        self._reading = threading.Lock()  # of the source: a stream that was lost may still be asking it
        self._sequence = 0
        self._unanswered: dict[int, Row] = {}
        self._unsent: deque[Row] = deque()  # read with their outcome
        self._stop = threading.Event()

    def interrupt(self) -> None:
        """Sends no more documents; `run` ends when those under way are answered."""
        self._stop.set()

    def run(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Ingests the rows and yields each with its outcome. Raises RemoteError where it cannot go on."""
        self._source = iter(rows)
        lost = 0
        with Connection().channel(self._to.address) as channel:
            while True:
                refused: dict[int, pb.IngestResponse] = {}  # retryable failures, to be sent again
                problem: RemoteError | None = None
                try:
                    for row in self._stream(channel, refused):
                        lost = 0
                        yield row
                except grpc.RpcError as error:
                    problem = remote_error(error, self._to.address)
                if self._broken is not None:
                    raise self._broken
                if problem is None and (self._stop.is_set() or not refused):
                    return
                lost += 1
                if problem is not None and (not problem.retryable or lost >= self._attempts):
                    raise problem
                if lost >= self._attempts:  # nothing but refusals: they are final now
                    yield from (self._unanswered.pop(n).answered(response) for n, response in refused.items())
                    lost = 0
                    continue
                pauses_s = [details_of(one.failed.status).retry_after_s or 0.0 for one in refused.values()]
                pauses_s.append(problem.retry_after_s if problem else 0.0)
                own_s = min(_FIRST_PAUSE_S * 2 ** (lost - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1)
                if self._stop.wait(max(own_s, *pauses_s)):
                    return

    def _stream(self, channel: grpc.Channel, refused: dict[int, pb.IngestResponse]) -> Iterator[Row]:
        """One stream: what the last one left unanswered, then the rest, until something is to be sent again."""
        opened, over = threading.Event(), threading.Event()
        if not self._message_bytes:
            self._message_bytes = int(self._to.describe().limits.request_bytes)
        call = ingestion_pb2_grpc.IngestionStub(channel).Ingest(self._requests(opened, over))
        try:
            for response in call:
                kind = response.WhichOneof("message")
                if kind == "failed" and response.failed.retryable:
                    refused[response.failed.sequence] = response
                    over.set()  # sends no more: the next stream begins with these
                elif kind in ("acknowledged", "failed"):
                    row = self._unanswered.pop(getattr(response, kind).sequence, None)
                    if row is not None:
                        yield row.answered(response)
                opened.set()
                while self._unsent:
                    yield self._unsent.popleft()
        finally:
            over.set()
            opened.set()
            call.cancel()
        while self._unsent:
            yield self._unsent.popleft()
        if missing := len(self._unanswered) - len(refused):
            unanswered = f"the service left {counted(missing, 'document')} without an answer"
            raise RemoteError(unanswered, grpc.StatusCode.UNAVAILABLE)

    # In the thread that sends

    def _requests(self, opened: threading.Event, over: threading.Event) -> Iterator[pb.IngestRequest]:
        """Must not fail: a stream whose requests fail only says that it was cancelled."""
        to = self._to
        start = pb.IngestStart(
            knowledge_base=to.knowledge_base, memory_writing=to.memory_writing, overlap_tokens=to.overlap_tokens
        )
        yield pb.IngestRequest(start=start)
        opened.wait()  # so that a refusal keeps its reason
        with self._reading:
            again = sorted(self._unanswered.items())
        for sequence, row in again:
            yield from self._messages(sequence, row)
        while (following := self._next(over)) is not None:
            yield from self._messages(*following)

    def _next(self, over: threading.Event) -> tuple[int, Row] | None:
        """The next document to send, once there is room; None at the end of the source or of the stream."""
        with self._reading:
            while not (over.is_set() or self._stop.is_set()):
                if len(self._unanswered) >= _WINDOW:
                    over.wait(_LOOK_AGAIN_S)
                    continue
                try:
                    row = next(self._source, None)
                except Exception as error:
                    self._broken = error
                    return None
                if row is None:
                    return None
                row = self._fitting(row)
                if row.item is not None:
                    self._sequence += 1
                    self._unanswered[self._sequence] = row
                    return self._sequence, row
                self._unsent.append(row)
        return None

    def _fitting(self, row: Row) -> Row:
        """The row; failed where its text does not fit into a message, which would end the stream of all others."""
        if row.item is None or row.item.HasField("prepared"):  # those are sent in pieces
            return row
        size = row.item.ByteSize() + _OVERHEAD_BYTES
        message = f"it has {size} bytes, the service takes messages of {self._message_bytes}: cut it into several"
        return row.failed("DOCUMENT_TOO_LARGE", message) if 0 < self._message_bytes < size else row

    def _messages(self, sequence: int, row: Row) -> Iterator[pb.IngestRequest]:
        assert row.item is not None, "rows without an item are not sent"
        row.item.sequence = sequence
        for item in pieces(row.item, self._message_bytes):
            yield pb.IngestRequest(item=item)


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


def listed(
    stub: ingestion_pb2_grpc.IngestionStub, knowledge_base: str, prefix: str = ""
) -> Iterator[pb.DocumentVersion]:
    """The documents whose keys begin with `prefix`, page by page in the order of their keys."""
    request = pb.ListDocumentsRequest(knowledge_base=knowledge_base, key_prefix=prefix)
    while True:
        page = stub.ListDocuments(request, timeout=60)
        yield from page.documents
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def delete_all(stub: ingestion_pb2_grpc.IngestionStub, knowledge_base: str, keys: Sequence[str]) -> int:
    """Delete documents, some at a time, so that what is done stays done; how many there were."""
    deleted = 0
    for start in range(0, len(keys), KEYS_AT_ONCE):
        request = pb.DeleteRequest(knowledge_base=knowledge_base, document_keys=keys[start : start + KEYS_AT_ONCE])
        deleted += stub.Delete(request, timeout=_DELETE_TIMEOUT_S).documents_deleted
    return deleted
