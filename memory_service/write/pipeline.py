"""The write path of one Ingest stream, from top to bottom; `IngestStream.batches` is the whole of it.

documents   the client's items, checked, split into references and hashed            (thread `prepare`)
batches     the documents that wait, up to a number of references
encoded     unchanged documents drop out; the others are embedded, written and compressed   (thread `encode`)
stored      a batch whole or not at all                                              (thread `write`)

Documents are read, batches encoded and batches stored at the same time: each stage runs ahead of the one after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Generic, TypeVar

from memory3.errors import Memory3Error
from memory_service.access.authorization import Access, Scope
from memory_service.budget import Holding
from memory_service.encoder import EncodedReferences, checked
from memory_service.errors import (
    BadRequest,
    DeadlineExceeded,
    EncodingFailed,
    KnowledgeBaseDamaged,
    KnowledgeBaseExists,
    KnowledgeBaseNotFound,
    Overloaded,
    ShuttingDown,
    retryable,
)
from memory_service.service import Runtime, Work
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE
from memory_service.stores.store import KnowledgeBase, Written
from memory_service.telemetry.logs import logger
from memory_service.write.document import LARGE_BYTES, DocumentReader, PendingDocument
from protos.memory.v1 import ingestion_pb2 as pb

_AHEAD_BYTES = 16 << 20
"""Of documents that are read and not yet encoded; one more may go beyond it."""

_MEMORY_OF_A_BYTE = 4
"""A document's text is there as a message, as text, in its references and in what the store writes."""
_MEMORY_OF_A_REFERENCE = 512
_LARGE_REFERENCES = 512

T = TypeVar("T")
Batch = list[PendingDocument]
"""Documents that are stored together; a key occurs once in it."""


class IngestStream:
    """One stream of documents into one knowledge base, on one event loop. Use once: `open`, then `batches`.

    Once the service stops it ends with ShuttingDown, as soon as what is encoded is answered.
    """

    def __init__(self, runtime: Runtime, access: Access, requests: AsyncIterator[pb.IngestRequest]) -> None:
        self.progress = pb.IngestProgress()
        self._runtime = runtime
        self._access = access
        self._requests = aiter(requests)
        self._start = pb.IngestStart()
        self._holding = Holding(runtime.budget, access.tenant)
        self._waiting_bytes = 0
        self._taken = asyncio.Event()
        self._on_the_way: Counter[str] = Counter()  # keys that are encoded and not stored

    async def open(self) -> KnowledgeBase:
        """Reads `start`; returns the knowledge base, which is created where it is missing and `start` says so."""
        request = await self._next()
        if request is None or request.WhichOneof("message") != "start":
            raise BadRequest("the first message of an Ingest stream must be `start`", field="start")
        start, runtime = request.start, self._runtime
        most = runtime.encoder.description.reference_tokens // 2
        if start.overlap_tokens > most:
            raise BadRequest(f"overlap of {start.overlap_tokens} tokens, expected 0 to {most}", field="overlap_tokens")
        self._start = start
        try:
            return await runtime.open(self._access, start.knowledge_base, Scope.WRITE)
        except KnowledgeBaseNotFound:
            if not start.create_if_missing:
                raise
        name = start.knowledge_base or DEFAULT_KNOWLEDGE_BASE
        try:
            return await runtime.run("write", runtime.create, self._access, name)
        except KnowledgeBaseExists:  # made by another stream meanwhile
            return await runtime.open(self._access, name, Scope.WRITE)

    async def batches(self, base: KnowledgeBase) -> AsyncGenerator[Batch, None]:
        """Every document, in order, with its `error`, `unchanged` or `written`. Raises what ends the stream early."""
        self._reader = DocumentReader(
            self._runtime.encoder,
            self._runtime.settings.document_limit_bytes,
            memory_bytes=self._runtime.settings.document_memory_bytes,
            overlap_tokens=self._start.overlap_tokens,
            later=self._later,
        )
        documents = _Ahead(self._documents(self._reader), self._runtime.settings.ingest_batch_references)
        encoded = _Ahead(self._encoded(base, self._batches(documents)), 1)
        try:
            while (batch := await encoded.next()) is not None:
                await self._store(base, batch)
                self._holding.release(sum(document.held_bytes for document in batch))
                self.progress.items_answered += len(batch)
                yield batch
        finally:
            self._reader.ended = True
            try:
                await encoded.close()
                await documents.close()
            finally:
                self._holding.close()

    @property
    def _later(self) -> bool:
        return self._start.memory_writing == pb.MEMORY_WRITING_LATER

    # Documents

    async def _documents(self, reader: DocumentReader) -> AsyncGenerator[PendingDocument, None]:
        """The items' documents, checked, split and hashed; raises where the client breaks the contract."""
        held_bytes = 0  # by the pieces of the document at hand
        last: int | None = None
        while (request := await self._next()) is not None:
            if request.WhichOneof("message") != "item":
                raise BadRequest("after `start` only `item` messages may come", field="message")
            sequence, continued = request.item.sequence, reader.open_sequence
            if continued is not None and sequence != continued:
                raise BadRequest(f"document {continued} was continued, {sequence} came", field="sequence")
            if continued is None and last is not None and sequence <= last:
                raise BadRequest(f"sequence number {sequence} after {last}: they must rise", field="sequence")
            last = sequence
            size = request.item.ByteSize()
            refusal = await self._take(_MEMORY_OF_A_BYTE * size, held_bytes)
            if refusal is None:
                held_bytes += _MEMORY_OF_A_BYTE * size
            work: Work = "prepare" if size < LARGE_BYTES else "prepare_large"
            document = await self._runtime.run(work, reader.read, request.item, refusal)
            if document is None:
                continue
            if document.error is None:
                made_bytes = self._bytes_to_make(document)
                if (refusal := await self._take(made_bytes, held_bytes)) is None:
                    held_bytes += made_bytes
                else:
                    document.refuse(refusal)
            document.held_bytes, held_bytes = held_bytes, 0
            self.progress.items_received += 1
            self._waiting_bytes += document.size_bytes
            yield document
            while self._waiting_bytes > _AHEAD_BYTES:
                self._taken.clear()
                await self._taken.wait()
        if reader.open_sequence is not None:
            raise BadRequest(f"the last piece of document {reader.open_sequence} is missing", field="continued")

    async def _take(self, size: int, mine: int) -> Overloaded | None:
        """Takes memory for a document, which holds `mine`, or says why not."""
        try:
            await self._holding.take(size, mine)
        except Overloaded as error:
            return error
        return None

    def _bytes_to_make(self, document: PendingDocument) -> int:
        """What vectors and payloads will take that are still to be made."""
        description = self._runtime.encoder.description
        payload_bytes = 0 if document.later else description.payload_bytes
        return len(document.missing()) * (4 * description.identity.dimension + payload_bytes + _MEMORY_OF_A_REFERENCE)

    async def _next(self) -> pb.IngestRequest | None:
        """The client's next message, None at its end. A client that waits for answers is not silent.

        Raises MalformedRequest, DeadlineExceeded for a silent client, and ShuttingDown.
        """
        coming = asyncio.ensure_future(_next_or_none(self._requests))
        drained = asyncio.ensure_future(self._runtime.draining.wait())
        timeout_s, progress = self._runtime.settings.ingest_idle_timeout_s, self.progress
        try:
            while True:
                answered = progress.items_answered
                await asyncio.wait({coming, drained}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    return coming.result()
                self._require_running()
                if answered == progress.items_answered == progress.items_received:
                    raise DeadlineExceeded(f"no message for {timeout_s:.0f} s; open a new stream and go on")
        finally:
            coming.cancel()
            drained.cancel()

    def _require_running(self) -> None:
        if self._runtime.draining.is_set():
            raise ShuttingDown("the service stops; what is not acknowledged must be sent again")

    # Batches

    async def _batches(self, documents: _Ahead[PendingDocument]) -> AsyncGenerator[Batch, None]:
        """Documents that wait, up to the batch size."""
        most, held_back = self._runtime.settings.ingest_batch_references, None
        while (first := held_back or await documents.next()) is not None:
            batch, keys, size, held_back = [first], {first.key}, len(first.texts), None
            while size < most and (more := documents.waiting()) is not None:
                if more.key in keys:
                    held_back = more
                    break
                batch.append(more)
                keys.add(more.key)
                size += len(more.texts)
            self._waiting_bytes -= sum(document.size_bytes for document in batch)
            self._taken.set()
            self._require_running()
            yield batch

    # Encoded

    async def _encoded(self, base: KnowledgeBase, batches: AsyncGenerator[Batch, None]) -> AsyncGenerator[Batch, None]:
        """Batches with vectors and payloads; a document that cannot be encoded has an error."""
        async for batch in batches:
            await self._find_unchanged(base, batch)
            new = [document for document in batch if document.to_write]
            if not await self._try_to_encode(new):
                for document in new:  # one of them is to blame: find it, keep the others
                    await self._try_to_encode([document])
            self._on_the_way.update(document.key for document in batch)
            yield batch

    async def _find_unchanged(self, base: KnowledgeBase, batch: Batch) -> None:
        good = [document for document in batch if document.error is None]
        try:
            keys = [document.key for document in good]
            stored = await self._runtime.run("read", self._runtime.store.versions, base, keys)
        except Memory3Error as error:
            for document in good:
                document.error = error
            return
        for document in good:
            version = stored.get(document.key)
            # A version that a batch before this one is about to replace says nothing; the store decides those in order.
            if (
                version is not None
                and not self._on_the_way[document.key]
                and version.content_hash == document.content_hash
                and (version.written or document.later)
            ):
                document.unchanged = version

    async def _try_to_encode(self, documents: Batch) -> bool:
        """Whether all is made; where it fails for a document alone, that has an error."""
        try:
            await self._encode(documents)
        except ShuttingDown:
            raise
        except Exception as error:
            if len(documents) == 1:
                documents[0].error = encoding_error(error, documents[0].key)
            return len(documents) == 1
        return True

    async def _encode(self, documents: Batch) -> None:
        """Makes what the documents lack, a slice at a time, so that a long one can be left when the service stops."""
        missing = [(document, chunk) for document in documents for chunk in document.missing()]
        start = 0
        while start < len(missing):
            self._require_running()
            part = missing[start : start + self._runtime.slice_size()]
            start += len(part)
            texts = [document.texts[chunk] for document, chunk in part]
            made = await self._runtime.encode(len(missing), self._made_of, texts)
            for (document, chunk), vector, payload in zip(part, made.vectors, made.payloads, strict=True):
                document.fill(chunk, vector, payload or None)
            self.progress.references_written += len(part)

    def _made_of(self, texts: list[str]) -> EncodedReferences:
        """Vectors and payloads, the latter empty where memories are written later; in the model's thread."""
        encoder = self._runtime.encoder
        none = [b""] * len(texts)
        encoded = EncodedReferences(encoder.embed(texts), none) if self._later else encoder.encode(texts)
        return checked(encoded, len(texts), encoder.description.identity.dimension)

    # Stored

    async def _store(self, base: KnowledgeBase, batch: Batch) -> None:
        """Writes the batch's new documents; each has its own verdict."""
        new = [document for document in batch if document.to_write]
        if new and not await self._try_to_store(base, new):
            for document in new:  # one of them is to blame: find it, keep the others
                await self._try_to_store(base, [document])
        self._on_the_way -= Counter(document.key for document in batch)

    async def _try_to_store(self, base: KnowledgeBase, documents: Batch) -> bool:
        """Whether every document has its verdict; False where a document may be to blame that failed all of them."""
        try:
            count = sum(len(document.texts) for document in documents)
            if count < _LARGE_REFERENCES:
                verdicts = await self._runtime.run_sized("write", count, self._write, base, documents)
            else:
                async with self._runtime.sole_writer(base):
                    verdicts = await self._runtime.run_sized("write_large", count, self._write, base, documents)
        except Exception as error:
            of_the_store = retryable(error) or isinstance(error, (KnowledgeBaseNotFound, KnowledgeBaseDamaged))
            if len(documents) > 1 and not of_the_store:
                return False
            cause = {"problem": str(error)} if isinstance(error, Memory3Error) else {"exc_info": error}
            logger().error("batch_not_stored", knowledge_base=base.name, documents=len(documents), **cause)
            for document in documents:
                document.error = error
            return True
        for document in documents:
            verdict = verdicts[document.key]
            if isinstance(verdict, Written):
                document.written = verdict
            else:
                document.error = verdict
        return True

    def _write(self, base: KnowledgeBase, new: Batch) -> dict[str, Written | Exception]:
        """What became of each document, or why it was not written; in the writer's thread."""
        documents = [document.finished() for document in new]
        with self._runtime.guard.writing(base, documents) as admission:
            written = self._runtime.store.write(base, admission.documents) if admission.documents else []
        return {**{one.key: one for one in written}, **admission.refused}


def encoding_error(error: Exception, key: str) -> Memory3Error:
    """What a document is refused with that could not be encoded; a bug's traceback goes to the log."""
    if isinstance(error, Memory3Error):
        return error
    logger().error("encoding_failed", document_key=key, exc_info=error)
    return EncodingFailed("the model could not turn this document into memories; the log has the cause")


async def _next_or_none(requests: AsyncIterator[pb.IngestRequest]) -> pb.IngestRequest | None:
    return await anext(requests, None)


class _Ahead(Generic[T]):
    """An iterator that a task of its own runs, up to `most` items ahead; its error comes after its last item."""

    def __init__(self, source: AsyncGenerator[T, None], most: int) -> None:
        self._queue: asyncio.Queue[T | Exception | None] = asyncio.Queue(most)
        self._end: list[Exception | None] = []
        self._task = asyncio.create_task(self._run(source))

    async def _run(self, source: AsyncGenerator[T, None]) -> None:
        end: Exception | None = None
        try:
            async for item in source:
                await self._queue.put(item)
        except Exception as error:
            end = error
        await self._queue.put(end)

    async def next(self) -> T | None:
        """The next item, None at the end; raises the iterator's error."""
        item = self._end[0] if self._end else await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    def waiting(self) -> T | None:
        """The next item if it is there already."""
        if self._end or self._queue.empty():
            return None
        item = self._queue.get_nowait()
        if item is None or isinstance(item, Exception):
            self._end.append(item)
            return None
        return item

    async def close(self) -> None:
        """Ends the task."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
