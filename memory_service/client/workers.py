"""`memory-service ingest --workers N`: processes that write the memories of documents themselves, each with a model.

    files -> documents of a share -> Write -> Send, or Store -> outcomes

Every worker reads the same files and takes its share of the documents, so workers need no coordinator, on one machine
or on many. A worker that dies is started again behind the last documents whose outcomes are known: documents that are
stored already are unchanged.
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol

import numpy as np

from memory3.errors import InvalidInput, Memory3Error
from memory3.text.references import split
from memory_service.client.ingest import Destination, Ingestion, Upload
from memory_service.client.share import Share
from memory_service.encoder import Encoder, checked
from memory_service.errors import DocumentEmpty, ServiceError, described
from memory_service.settings import Settings
from memory_service.stores.address import parse_address
from memory_service.stores.opening import open_store
from memory_service.stores.store import NewDocument, Written, require_same
from memory_service.write.document import PendingDocument, check_head, title_of
from memory_service.write.pipeline import encoding_error
from protos.memory.v1 import ingestion_pb2 as pb

ROWS = 32
"""Documents that are written together: enough for batches of similar length, little to do again."""
STORED_ROWS = 4096
"""Documents that a worker stores at once where it writes to the store itself."""
_STORE_ATTEMPTS = 6
_STARTS = 4
"""Of a worker that dies each time before a document is done."""


class IngestionStopped(Memory3Error):
    """A worker cannot go on, for all documents alike; what was acknowledged is stored."""


# Stages of a worker: each takes uploads and gives as many back


class Write:
    """Leaves out what is stored; splits, embeds and writes the rest."""

    def __init__(self, to: Destination, load: Callable[[], Encoder]) -> None:
        """Loads the model; raises an IdentityMismatch where the service runs another one."""
        self._to = to
        self._encoder = load()
        ours = self._encoder.description.identity
        require_same(to.identity(), ours, "give the workers the service's model, codec and bundle")

    def __call__(self, uploads: Sequence[Upload], on_the_way: Iterable[str] = ()) -> list[Upload]:
        """One batch, its references together; where that fails, document by document.

        on_the_way: keys of documents that are written and not stored yet.
        """
        return self._written([self._prepared(upload) for upload in self._to.without_unchanged(uploads, on_the_way)])

    def _prepared(self, upload: Upload) -> Upload:
        if upload.item is None:
            return upload
        text = upload.item.document
        try:
            title = title_of(text, self._encoder)
            check_head(text.key, title, text.metadata)
            count_tokens, limit = self._encoder.count_tokens, self._encoder.description.reference_tokens
            blank, overlap = not text.text.strip(), self._to.overlap_tokens
            texts = [] if blank else split(text.text, title, count_tokens, limit, overlap)
            if not texts:
                raise DocumentEmpty("the document has no text", field="text")
        except Memory3Error as error:
            return _refused(upload, error)
        prepared = pb.PreparedDocument(
            key=text.key,
            title=title,
            metadata=text.metadata,
            content_hash=self._to.content_hash(text),
            references=[pb.PreparedReference(text=part) for part in texts],
        )
        return replace(upload, item=pb.IngestItem(prepared=prepared))

    def _written(self, uploads: list[Upload]) -> list[Upload]:
        try:
            references = [part for upload in uploads if upload.item for part in upload.item.prepared.references]
            if references:
                made = self._encoder.encode([reference.text for reference in references])
                made = checked(made, len(references), self._encoder.description.identity.dimension)
                for reference, vector, payload in zip(references, made.vectors, made.payloads, strict=True):
                    reference.embedding = vector.astype("<f4").tobytes()
                    reference.payload = payload
        except Exception as error:
            if len(uploads) > 1:
                return [done for upload in uploads for done in self._written([upload])]
            return [_refused(uploads[0], encoding_error(error, uploads[0].key))]
        return uploads


class Send:
    """Sends to the service's stream, which checks, stores and acknowledges."""

    def __init__(self, to: Destination) -> None:
        self._to = replace(to, memory_writing=pb.MEMORY_WRITING_NOW)

    def __call__(self, uploads: Sequence[Upload]) -> list[Upload]:
        """One batch, one stream; raises RemoteError."""
        return list(Ingestion(self._to).run(uploads))


class Store:
    """Writes to the store's server itself, thousands of documents at once; quotas do not apply."""

    def __init__(self, to: Destination, settings: Settings) -> None:
        """settings: the store's (MEMORY_SERVICE_STORE…). Raises StoreUnavailable, KnowledgeBaseNotFound."""
        self._store = open_store(settings.store, settings.store_options())
        self._base = self._store.knowledge_base(to.knowledge_base)
        require_same(self._base.identity, to.identity(), "name the store of this service")

    def __call__(self, uploads: Sequence[Upload]) -> list[Upload]:
        """One part; of a key that occurs twice the last one is stored."""
        documents = {upload.key: _new_document(upload) for upload in uploads if upload.item is not None}
        written = {one.key: one for one in self._write(list(documents.values()))}

        def done(upload: Upload) -> Upload:
            if upload.item is None:
                return upload
            one = written[upload.key]
            outcome = "unchanged" if one.unchanged else "replaced" if one.replaced else "stored"
            return upload.done(outcome, one.reference_count)

        return [done(upload) for upload in uploads]

    def _write(self, documents: Sequence[NewDocument]) -> list[Written]:
        for attempt in itertools.count(1):
            try:
                return self._store.write(self._base, documents) if documents else []
            except ServiceError as error:
                if not error.retryable or attempt == _STORE_ATTEMPTS:
                    raise
                time.sleep(0.5 * 2**attempt)
        raise AssertionError


def _new_document(upload: Upload) -> NewDocument:
    assert upload.item is not None, "done uploads are not stored"
    prepared = upload.item.prepared
    document = PendingDocument(prepared.key, prepared.title, dict(prepared.metadata), prepared.content_hash)
    document.take([reference.text for reference in prepared.references])
    for chunk, reference in enumerate(prepared.references):
        document.fill(chunk, np.frombuffer(reference.embedding, "<f4"), reference.payload)
    return document.finished()


def _refused(upload: Upload, error: Memory3Error) -> Upload:
    _, reason, message, _ = described(error)
    return upload.failed(reason, message)


# A worker


class Load(Protocol):
    """Loads the model in a worker process; can be pickled."""

    def __call__(self, worker: int, workers: int) -> Encoder:
        """worker: its number, of those on this machine."""


@dataclass(frozen=True)
class Work:
    """What a worker does. skip: documents of its share whose outcomes are known."""

    sources: Mapping[str, Path]
    to: Destination
    load: Load
    share: Share
    worker: int
    workers: int
    store: Settings | None
    skip: int = 0

    def outcomes(self) -> Iterator[list[Upload]]:
        """Of the share's documents, in their order, some at a time: written, and sent meanwhile."""
        write = Write(self.to, lambda: self.load(self.worker, self.workers))
        last: Callable[[Sequence[Upload]], list[Upload]]
        last, together = (Send(self.to), ROWS) if self.store is None else (Store(self.to, self.store), STORED_ROWS)
        documents = itertools.islice(self.share.documents(self.sources), self.skip, None)
        uploads = map(Upload.of, documents)
        with ThreadPoolExecutor(1) as sending:
            written, before = list[Upload](), list[Upload]()  # before: those that `sent` is of
            sent: Future[list[Upload]] | None = None
            while batch := list(itertools.islice(uploads, ROWS)):
                written += write(batch, {one.key for one in (*before, *written) if one.item is not None})
                if len(written) < together:
                    continue
                if sent is not None:
                    yield sent.result()
                sent, before, written = sending.submit(last, written), written, []
            if sent is not None:
                yield sent.result()
            if written:
                yield last(written)


def _run(work: Work, outcomes: Connection) -> None:
    """The worker's process: sends lists of outcomes, and an error's text at the end if there is one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    try:
        for done in work.outcomes():
            outcomes.send(done)
    except Memory3Error as error:
        outcomes.send(str(error))


class _Worker:
    """A worker as its parent sees it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._done = 0
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Start the process behind the documents that are done."""
        self._starts += 1
        # A new process, not a fork of this one: torch and gRPC do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.outcomes, theirs = context.Pipe(duplex=False)
        work = replace(self._work, skip=self._done)
        self._process = context.Process(target=_run, args=(work, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self) -> list[Upload] | None:
        """Outcomes; None at the end. Starts a process that died again; raises IngestionStopped."""
        try:
            received = self.outcomes.recv()
        except (EOFError, OSError):  # between two messages, and within one
            self._process.join()
            if self._process.exitcode == 0:
                return None
            if self._starts == _STARTS:
                how = f"the last time with exit code {self._process.exitcode}"
                raise IngestionStopped(f"worker {self._work.worker} died {_STARTS} times, {how}") from None
            self.start()
            return []
        if isinstance(received, str):
            raise IngestionStopped(received)
        self._done += len(received)
        self._starts = 1
        return received

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.terminate()
        self._process.join()
        self.outcomes.close()


def ingest_with_workers(
    sources: Mapping[str, Path],
    to: Destination,
    load: Load,
    *,
    workers: int = 1,
    share: Share = Share(),
    store: Settings | None = None,
) -> Generator[Upload]:
    """Ingests files and yields every document with its outcome, in the order in which they are done.

    sources: files by the key of each. workers: processes on this machine, which divide `share` among themselves.
    store: settings of the store that the workers write to themselves, a server's; without, they send to the service.
    Raises InvalidInput, and IngestionStopped: a model or a service that a worker cannot use stops all.
    """
    if store is not None and not parse_address(store.store).host:
        raise InvalidInput("workers write to clickhouse:// and myscale:// themselves, to other stores by the service")
    running: list[_Worker] = []
    try:
        for number in range(workers):
            part = Share(number, workers).of(share)
            running.append(_Worker(Work(sources, to, load, part, number, workers, store)))
        waiting = list(running)
        while waiting:
            ready = wait([worker.outcomes for worker in waiting])
            for worker in [one for one in waiting if one.outcomes in ready]:
                uploads = worker.receive()
                if uploads is None:
                    waiting.remove(worker)
                else:
                    yield from uploads
    finally:
        for worker in running:
            worker.stop()
