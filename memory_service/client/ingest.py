"""Documents into a service: an upload is one document, a destination where it goes, an ingestion sends it.

Documents up, outcomes down, through lost connections and a store that is away.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_OVERHEAD_BYTES = 1 << 16
_GO_ON = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
"""After which a new stream goes on. The last: reading a file took longer than the service waits for a message."""
_OF_THE_STORE = ("STORE_FULL", "STORE_UNAVAILABLE")
_OF_THE_BASE = ("KNOWLEDGE_BASE_NOT_FOUND", "KNOWLEDGE_BASE_DAMAGED")
_OUTCOMES = {pb.INGEST_OUTCOME_REPLACED: "replaced", pb.INGEST_OUTCOME_UNCHANGED: "unchanged"}


@dataclass(frozen=True)
class Upload:
    """One document as it is sent, and its outcome.

    A `FileDocument` is text that was read from a file. An upload is a message: text, or references with their memories
    (of a backup, of a worker), which no file holds.

    item: the message; None once there is an outcome. source, position: the file and the position in it, to display.
    outcome: empty until then; stored, replaced, unchanged, or failed with its reason. references_of: reads the
    references that a prepared item lacks whenever it is sent, so that it takes no memory. notes: what was assumed while
    reading.
    """

    key: str
    item: pb.IngestItem | None = None
    source: str = ""
    position: str = ""
    outcome: str = ""
    references: int = 0
    reason: str = ""
    message: str = ""
    notes: tuple[str, ...] = ()
    references_of: Callable[[], Iterator[pb.PreparedReference]] | None = None

    @classmethod
    def of(cls, read: FileDocument) -> Upload:
        """A document as it was read, or failed with the reason why it could not be."""
        upload = cls(read.key, source=read.source, position=read.position, notes=read.notes)
        if read.unreadable:
            return upload.failed("UNREADABLE", read.unreadable)
        try:
            document = pb.Document(key=read.key, title=read.title, text=read.text, metadata=read.metadata)
        except UnicodeEncodeError as error:  # file systems take any bytes for a name, JSON any escape
            of_name = "its name is not UTF-8: rename it"
            of_text = "it holds half of a surrogate pair, which is no character"
            return upload.failed("UNREADABLE", of_name if error.object == read.key else of_text)
        return replace(upload, item=pb.IngestItem(document=document))

    @property
    def where(self) -> str:
        """The file, the position in it, and the key if it differs, to display."""
        return where(self.source, self.position, self.key)

    def done(self, outcome: str, references: int = 0) -> Upload:
        """With its outcome."""
        return replace(self, item=None, outcome=outcome, references=references)

    def failed(self, reason: str, message: str) -> Upload:
        """Refused."""
        return replace(self, item=None, outcome="failed", reason=reason, message=message)

    def answered(self, response: pb.IngestResponse) -> Upload:
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
            wanted = knowledge_bases_pb2.GetKnowledgeBaseRequest(name=self.knowledge_base)
            new = knowledge_bases_pb2.CreateKnowledgeBaseRequest(name=self.knowledge_base)
            try:
                bases.GetKnowledgeBase(wanted, timeout=30)
                return False
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND or not create:
                    raise
            try:
                bases.CreateKnowledgeBase(new, timeout=30)
                return True
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.ALREADY_EXISTS:  # by another share of the same ingestion
                    raise
                return False

    def without_unchanged(self, uploads: Sequence[Upload], on_the_way: Iterable[str] = ()) -> list[Upload]:
        """The uploads, at most 1000; documents that the knowledge base has, with their memories, are done.

        on_the_way: keys of which another text will be stored before these; what is stored now says nothing of them.
        """
        keys = sorted({upload.key for upload in uploads if upload.item is not None and upload.key})
        stored: dict[str, pb.DocumentVersion] = {}
        if keys:
            with connected(self.address) as channel:
                stub = ingestion_pb2_grpc.IngestionStub(channel)
                request = pb.GetVersionsRequest(knowledge_base=self.knowledge_base, document_keys=keys)
                versions = stub.GetVersions(request, timeout=60).versions
                stored = {version.document_key: version for version in versions}

        def checked(upload: Upload) -> Upload:
            version = stored.get(upload.key)
            if upload.item is None or version is None or not version.memories_written:
                return upload
            same = self.content_hash(upload.item.document) == version.content_hash
            return upload.done("unchanged", version.reference_count) if same else upload

        changing, found = set(on_the_way), list[Upload]()
        for upload in uploads:
            found.append(upload if upload.key in changing else checked(upload))
            if found[-1].item is not None:
                changing.add(upload.key)
        return found

    def content_hash(self, text: pb.Document) -> bytes:
        """That of a document which goes there."""
        return text_hash_of(text.title, text.metadata, text.text, self.overlap_tokens)


class Ingestion:
    """One ingestion into one knowledge base. Use once, from one thread; `interrupt` may be called from any.

    The service answers documents that it has already as unchanged. A lost connection and a failure that the service
    calls retryable are tried again, after RetryInfo or a pause that doubles, up to `attempts` times in a row without an
    answer in between. What every other document would meet ends the ingestion: after these attempts a failure of the
    store, at once a knowledge base that was deleted or found damaged meanwhile.
    """

    def __init__(
        self, to: Destination, *, attempts: int = 10, on_wait: Callable[[str, float], None] = lambda why, pause_s: None
    ) -> None:
        """attempts: ten are some 45 s, in which a service loads its model and store; 10 minutes on a full disk.

        on_wait: gets why it is tried again, and the pause before it in seconds.
        """
        self._to = to
        self._attempts = attempts
        self._on_wait = on_wait
        self._message_bytes = 0
        self._source: Iterator[Upload] = iter(())
        self._broken: Exception | None = None  # what reading the source raised
        self._reading = threading.Lock()  # of the source: a stream that was lost may still be asking it
        self._sequence = 0
        self._unanswered: dict[int, Upload] = {}
        self._unsent: deque[Upload] = deque()  # read with their outcome
        self._stop = threading.Event()

    def interrupt(self) -> None:
        """Sends no more documents; `run` ends when those under way are answered."""
        self._stop.set()

    def run(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        """Ingests the uploads and yields each with its outcome. Raises RemoteError where it cannot go on."""
        self._source = iter(uploads)
        lost = 0
        with Connection().channel(self._to.address) as channel:
            while True:
                refused: dict[int, pb.IngestResponse] = {}  # answers to what is to be sent again
                problem: RemoteError | None = None
                try:
                    for upload in self._stream(channel, refused):
                        lost = 0
                        yield upload
                except grpc.RpcError as error:
                    problem = remote_error(error, self._to.address)
                if self._broken is not None:
                    raise self._broken
                if problem is None and (self._stop.is_set() or not refused):
                    return
                lost += 1
                if problem is not None and (problem.code not in _GO_ON or lost >= self._attempts):
                    raise problem
                why = problem or _of_failure(next(iter(refused.values())).failed)
                if lost >= self._attempts and why.reason in _OF_THE_STORE:
                    raise why
                if lost >= self._attempts:  # nothing but refusals: they are final now
                    yield from (self._unanswered.pop(n).answered(response) for n, response in refused.items())
                    lost = 0
                    continue
                pauses_s = [details_of(one.failed.status).retry_after_s or 0.0 for one in refused.values()]
                pauses_s.append(problem.retry_after_s if problem else 0.0)
                own_s = min(_FIRST_PAUSE_S * 2 ** (lost - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1)
                pause_s = max(own_s, *pauses_s)
                self._on_wait(str(why), pause_s)
                if self._stop.wait(pause_s):
                    return

    def _stream(self, channel: grpc.Channel, refused: dict[int, pb.IngestResponse]) -> Iterator[Upload]:
        """One stream: what the last one left unanswered, then the rest, until something is to be sent again."""
        opened, over = threading.Event(), threading.Event()
        if not self._message_bytes:
            self._message_bytes = int(self._to.describe().limits.request_bytes)
        call = ingestion_pb2_grpc.IngestionStub(channel).Ingest(self._requests(opened, over))
        try:
            for response in call:
                kind = response.WhichOneof("message")
                if kind in ("acknowledged", "failed"):
                    sequence = getattr(response, kind).sequence
                    upload = self._unanswered.get(sequence)
                    again = kind == "failed" and response.failed.retryable
                    # What came after another text of its key goes after it again, too.
                    if again or (upload is not None and upload.key in {self._unanswered[n].key for n in refused}):
                        refused[sequence] = response
                        over.set()  # sends no more: the next stream begins with these
                    elif kind == "failed" and (why := _of_failure(response.failed)).reason in _OF_THE_BASE:
                        raise why
                    elif upload is not None:
                        del self._unanswered[sequence]
                        yield upload.answered(response)
                opened.set()
                while self._unsent:
                    yield self._unsent.popleft()
        finally:
            over.set()
            opened.set()
            call.cancel()
        while self._unsent:
            yield self._unsent.popleft()
        missing = len(self._unanswered) - len(refused)
        if missing and self._broken is None:
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
        for sequence, upload in again:
            yield from self._messages(sequence, upload)
            if self._broken is not None:
                return
        while self._broken is None and (following := self._next(over)) is not None:
            yield from self._messages(*following)

    def _next(self, over: threading.Event) -> tuple[int, Upload] | None:
        """The next document to send, once there is room; None at the end of the source or of the stream."""
        with self._reading:
            while not (over.is_set() or self._stop.is_set()):
                if len(self._unanswered) >= _WINDOW:
                    over.wait(_LOOK_AGAIN_S)
                    continue
                try:
                    upload = next(self._source, None)
                except Exception as error:
                    self._broken = error
                    return None
                if upload is None:
                    return None
                upload = self._fitting(upload)
                if upload.item is not None:
                    self._sequence += 1
                    self._unanswered[self._sequence] = upload
                    return self._sequence, upload
                self._unsent.append(upload)
        return None

    def _fitting(self, upload: Upload) -> Upload:
        """The upload; failed where its text does not fit into a message, which would end the stream of all others."""
        if upload.item is None or upload.item.HasField("prepared"):  # those are sent in pieces
            return upload
        size = upload.item.ByteSize() + _OVERHEAD_BYTES
        message = f"it has {size} bytes, the service takes messages of {self._message_bytes}: cut it into several"
        return upload.failed("DOCUMENT_TOO_LARGE", message) if 0 < self._message_bytes < size else upload

    def _messages(self, sequence: int, upload: Upload) -> Iterator[pb.IngestRequest]:
        assert upload.item is not None, "uploads without an item are not sent"
        upload.item.sequence = sequence
        references = upload.references_of() if upload.references_of is not None else None
        try:
            for item in pieces(upload.item, self._message_bytes, references):
                yield pb.IngestRequest(item=item)
        except Exception as error:  # of what reads the references
            self._broken = error


def _of_failure(failed: pb.DocumentFailure) -> RemoteError:
    """Why a document was refused, as the error of the ingestion."""
    reason = details_of(failed.status).reason
    return RemoteError(failed.status.message, grpc.StatusCode.RESOURCE_EXHAUSTED, reason)


def pieces(
    item: pb.IngestItem, message_bytes: int, references: Iterator[pb.PreparedReference] | None = None
) -> Iterator[pb.IngestItem]:
    """The item, or its prepared references in items that each fit into a message (0: no limit).

    references: those of a prepared item that comes without.
    """
    fits = not message_bytes or item.ByteSize() + _OVERHEAD_BYTES <= message_bytes
    if references is None and (fits or not item.HasField("prepared")):
        yield item
        return
    whole = item.prepared
    piece = pb.PreparedDocument(
        key=whole.key, title=whole.title, metadata=whole.metadata, content_hash=whole.content_hash, continued=True
    )
    size = piece.ByteSize() + _OVERHEAD_BYTES
    for reference in references if references is not None else whole.references:
        more = reference.ByteSize() + 16
        if 0 < message_bytes < size + more and piece.references:
            yield pb.IngestItem(sequence=item.sequence, prepared=piece)
            piece, size = pb.PreparedDocument(key=whole.key, continued=True), _OVERHEAD_BYTES
        piece.references.append(reference)
        size += more
    piece.continued = False
    yield pb.IngestItem(sequence=item.sequence, prepared=piece)
