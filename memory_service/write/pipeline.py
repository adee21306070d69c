"""One stream of documents: splitting, encoding and storing overlap; each has its own thread.

read    items -> checked and split           (ahead of the encoder, bounded in documents and bytes)
encode  unchanged ones drop out; the rest is embedded, written and compressed in batches
store   one batch whole or not at all; then its answers go out, in the order of the items
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from memory_model.errors import Memory3Error
from memory_service.access.authorization import Access, Catalogue, Scope
from memory_service.access.quotas import WriteGuard
from memory_service.errors import (
    BadRequest,
    DeadlineExceeded,
    EncodingFailed,
    KnowledgeBaseExists,
    KnowledgeBaseNotFound,
    ServiceError,
    ShuttingDown,
    described,
    to_status,
)
from memory_service.ops.logs import logger
from memory_service.ops.tracing import span
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE, Settings
from memory_service.stores import KnowledgeBase, StoredVersion, Written
from memory_service.write.document import PendingDocument, StreamOptions, checked, read_item
from memory_service.write.encoder import EncodedReferences, Encoder
from protos.memory.v1 import ingestion_pb2 as pb

_AHEAD_BYTES = 16 << 20


@dataclass(frozen=True)
class Threads:
    """Where work leaves the event loop. `encode` and `write` have one thread each: the model and the store's writer."""

    read: Executor
    write: Executor
    prepare: Executor
    encode: Executor


@dataclass
class Batch:
    """Documents that are stored together; `unchanged` maps keys to what the store holds already."""

    documents: list[PendingDocument] = field(default_factory=list)
    unchanged: dict[str, StoredVersion] = field(default_factory=dict)


class IngestStream:
    """One stream of documents into one knowledge base. Use once."""

    def __init__(
        self,
        access: Access,
        catalogue: Catalogue,
        guard: WriteGuard,
        encoder: Encoder,
        threads: Threads,
        settings: Settings,
        draining: asyncio.Event,
    ) -> None:
        self._access = access
        self._catalogue = catalogue
        self._guard = guard
        self._encoder = encoder
        self._threads = threads
        self._settings = settings
        self._draining = draining
        self._intake: asyncio.Queue[PendingDocument | None] = asyncio.Queue(settings.ingest_batch_references)
        self._encoded: asyncio.Queue[Batch | None] = asyncio.Queue(1)
        self._intake_bytes = 0
        self._taken = asyncio.Event()
        self._held_back: PendingDocument | None = None
        self._on_the_way: Counter[str] = Counter()
        self._failure: Exception | None = None
        self._progress = pb.IngestProgress()
        self._options = StreamOptions(settings.document_limit_bytes)
        self.base: KnowledgeBase | None = None

    async def responses(
        self, requests: AsyncIterator[pb.IngestRequest]
    ) -> AsyncGenerator[pb.IngestResponse, None]:
        """Runs the stream: `started`, then an answer for every item, in order. Raises what ends the stream early."""
        requests = aiter(requests)
        base = self.base = await self._open(await self._next(requests))
        yield pb.IngestResponse(
            started=pb.IngestStarted(
                knowledge_base=self._access.seen_name(base.name),
                document_limit_bytes=self._settings.document_limit_bytes,
                reference_tokens=self._encoder.description.reference_tokens,
            )
        )  # fmt: skip
        tasks = [asyncio.create_task(self._read(requests)), asyncio.create_task(self._encode(base))]
        try:
            while (batch := await self._encoded.get()) is not None:
                for response in await self._store(base, batch):
                    yield response
                self._progress.items_answered += len(batch.documents)
                yield pb.IngestResponse(progress=self._progress)
            if self._failure is not None:
                raise self._failure  # every item that was read before it has its answer
            if self._draining.is_set() and not (
                tasks[0].done() and self._progress.items_answered == self._progress.items_received
            ):
                raise ShuttingDown("the service stops; what is not acknowledged must be sent again")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Reading

    async def _next(self, requests: AsyncIterator[pb.IngestRequest]) -> pb.IngestRequest | None:
        """The client's next message, None at its end; raises MalformedRequest, DeadlineExceeded for a silent client."""
        try:
            return await asyncio.wait_for(anext(requests), self._settings.ingest_idle_timeout_s)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise DeadlineExceeded(
                f"no message for {self._settings.ingest_idle_timeout_s:.0f} s; open a new stream and go on"
            ) from None

    async def _open(self, request: pb.IngestRequest | None) -> KnowledgeBase:
        if request is None or request.WhichOneof("message") != "start":
            raise BadRequest("the first message of an Ingest stream must be `start`", field="start")
        self._options = self._options_of(request.start)
        try:
            return self._catalogue.open(self._access, request.start.knowledge_base, Scope.WRITE)
        except KnowledgeBaseNotFound:
            if not request.start.create_if_missing:
                raise
        loop = asyncio.get_running_loop()
        name = request.start.knowledge_base or DEFAULT_KNOWLEDGE_BASE
        try:
            return await loop.run_in_executor(self._threads.write, self._catalogue.create, self._access, name)
        except KnowledgeBaseExists:  # another stream, perhaps of another pod, was faster
            return self._catalogue.open(self._access, name, Scope.WRITE)

    def _options_of(self, start: pb.IngestStart) -> StreamOptions:
        most = self._encoder.description.reference_tokens // 2
        if start.overlap_tokens > most:
            raise BadRequest(
                f"an overlap of {start.overlap_tokens} tokens, expected 0 to {most}", field="overlap_tokens"
            )
        later = start.memory_writing == pb.MEMORY_WRITING_LATER or (
            start.memory_writing == pb.MEMORY_WRITING_UNSPECIFIED and self._settings.memory_writing == "later"
        )
        return StreamOptions(self._settings.document_limit_bytes, start.overlap_tokens, later)

    async def _read(self, requests: AsyncIterator[pb.IngestRequest]) -> None:
        """Fills the intake; its end is None, also when the client broke the contract."""
        try:
            await self._read_items(requests)
        except Exception as error:
            self._failure = error
        await self._intake.put(None)

    async def _read_items(self, requests: AsyncIterator[pb.IngestRequest]) -> None:
        loop = asyncio.get_running_loop()
        last: int | None = None
        while (request := await self._next(requests)) is not None:
            if request.WhichOneof("message") != "item":
                raise BadRequest("after `start` only `item` messages may come", field="message")
            if last is not None and request.item.sequence <= last:
                raise BadRequest(
                    f"sequence number {request.item.sequence} after {last}: they must rise", field="sequence"
                )
            last = request.item.sequence
            self._progress.items_received += 1
            document = await loop.run_in_executor(
                self._threads.prepare,
                read_item,
                request.item,
                self._encoder,
                self._options,
            )
            self._intake_bytes += document.size_bytes
            await self._intake.put(document)
            while self._intake_bytes > _AHEAD_BYTES:
                self._taken.clear()
                await self._taken.wait()

    # Encoding

    async def _encode(self, base: KnowledgeBase) -> None:
        """Takes batches from the intake, gives them encoded to the store; its end is None."""
        try:
            while (batch := await self._next_batch()) is not None:
                await self._encode_batch(base, batch)
                if self._draining.is_set() and not self._complete(batch):
                    break
                self._on_the_way.update(document.key for document in batch.documents)
                await self._encoded.put(batch)
        except Exception as error:
            self._failure = error
        await self._encoded.put(None)

    async def _next_batch(self) -> Batch | None:
        """Documents that wait, up to the batch size; a key occurs once in it. None at the end or when draining."""
        first = self._held_back or await self._take_or_drain()
        self._held_back = None
        if first is None:
            return None
        batch, keys, size = Batch([first]), {first.key}, len(first.texts)
        while size < self._settings.ingest_batch_references and not self._intake.empty():
            document = self._taken_from_intake(self._intake.get_nowait())
            if document is None:
                self._intake.put_nowait(None)
                break
            if document.key in keys:
                self._held_back = document
                break
            batch.documents.append(document)
            keys.add(document.key)
            size += len(document.texts)
        return batch

    async def _take_or_drain(self) -> PendingDocument | None:
        take = asyncio.create_task(self._intake.get())
        drain = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({take, drain}, return_when=asyncio.FIRST_COMPLETED)
            if self._draining.is_set() or not take.done():
                return None
            return self._taken_from_intake(take.result())
        finally:
            take.cancel()
            drain.cancel()

    def _taken_from_intake(self, document: PendingDocument | None) -> PendingDocument | None:
        if document is not None:
            self._intake_bytes -= document.size_bytes
            self._taken.set()
        return document

    async def _encode_batch(self, base: KnowledgeBase, batch: Batch) -> None:
        """Fills vectors and payloads of the batch's new documents; a document that cannot be encoded gets an error."""
        loop = asyncio.get_running_loop()
        good = [document for document in batch.documents if document.error is None]
        try:
            stored = await loop.run_in_executor(
                self._threads.read, self._catalogue.store.versions, base, [document.key for document in good]
            )
        except Memory3Error as error:
            for document in good:
                document.error = error
            return
        # A version that a batch before this one is about to replace says nothing; the store decides those in order.
        batch.unchanged = {
            d.key: stored[d.key]
            for d in good
            if d.key in stored
            and stored[d.key].content_hash in (d.content_hash, d.stored_hash())
            and not self._on_the_way[d.key]
        }
        new = [document for document in good if document.key not in batch.unchanged]
        try:
            await self._fill(new)
        except Exception as error:
            if len(new) == 1:
                new[0].error = _encoding_error(error, new[0])
                return
            for document in new:  # one of them is to blame: find it, keep the others
                try:
                    await self._fill([document])
                except Exception as its_error:
                    document.error = _encoding_error(its_error, document)

    async def _fill(self, documents: list[PendingDocument]) -> None:
        """Encodes what the documents lack, a slice at a time, so that a long one can be left when the service stops."""
        places = [(document, place) for document in documents for place in document.missing()]
        step = self._settings.ingest_batch_references
        for start in range(0, len(places), step):
            if self._draining.is_set():
                return
            part = places[start : start + step]
            texts = [document.texts[place] for document, place in part]
            loop = asyncio.get_running_loop()
            encoded = await loop.run_in_executor(self._threads.encode, self._made_of, texts)
            for (document, place), vector, payload in zip(
                part, encoded.vectors, encoded.payloads, strict=True
            ):
                document.fill(place, vector, payload or None)
            self._progress.references_written += len(part)

    def _made_of(self, texts: list[str]) -> EncodedReferences:
        """Vectors and payloads, the latter empty where memories are written later; in the model's thread."""
        if self._options.later:
            encoded = EncodedReferences(self._encoder.embed(texts), [b""] * len(texts))
        else:
            encoded = self._encoder.encode(texts)
        return checked(encoded, len(texts), self._encoder.description.identity.dimension)

    @staticmethod
    def _complete(batch: Batch) -> bool:
        return not any(
            d.error is None and d.key not in batch.unchanged and d.missing() for d in batch.documents
        )

    # Storing

    async def _store(self, base: KnowledgeBase, batch: Batch) -> list[pb.IngestResponse]:
        """Stores the batch and returns the answers to its items."""
        new = [d for d in batch.documents if d.error is None and d.key not in batch.unchanged]
        written: dict[str, Written] = {}
        if new:
            loop = asyncio.get_running_loop()
            try:
                with span("store.write", documents=len(new)):
                    outcome = await loop.run_in_executor(self._threads.write, self._write, base, new)
                written = {one.key: one for one in outcome}
            except Exception as error:
                cause = {"problem": str(error)} if isinstance(error, Memory3Error) else {"exc_info": error}
                logger().error("batch_not_stored", knowledge_base=base.name, documents=len(new), **cause)
                for document in new:
                    document.error = error
        self._on_the_way.subtract(document.key for document in batch.documents)
        self._on_the_way = +self._on_the_way
        return [_answer(document, written.get(document.key), batch) for document in batch.documents]

    def _write(self, base: KnowledgeBase, new: list[PendingDocument]) -> list[Written]:
        """In the writer's thread; raises QuotaExceeded, DiskWatermarkReached before anything is written."""
        documents = [document.finished() for document in new]
        with self._guard.writing(base, documents):
            return self._catalogue.store.write(base, documents)


def _encoding_error(error: Exception, document: PendingDocument) -> Exception:
    if isinstance(error, Memory3Error):
        return error
    logger().error("encoding_failed", document_key=document.key, exc_info=error)
    return EncodingFailed(
        "the model could not turn this document into memories; the service's log has the cause"
    )


def _answer(document: PendingDocument, written: Written | None, batch: Batch) -> pb.IngestResponse:
    if document.error is not None:
        code, reason, message, metadata = described(document.error)
        return pb.IngestResponse(
            failed=pb.DocumentFailure(
                sequence=document.sequence, document_key=document.key, code=code.value[0],
                reason=reason, message=message, metadata=metadata, status=to_status(document.error),
                retryable=isinstance(document.error, ServiceError) and document.error.retryable,
            )
        )  # fmt: skip
    if document.key in batch.unchanged:
        outcome, count = pb.INGEST_OUTCOME_UNCHANGED, len(batch.unchanged[document.key].memory_ids)
    else:
        assert written is not None, "the store answers for every document"
        outcome = pb.INGEST_OUTCOME_REPLACED if written.replaced else pb.INGEST_OUTCOME_STORED
        if written.unchanged:
            outcome = pb.INGEST_OUTCOME_UNCHANGED
        count = written.reference_count
    return pb.IngestResponse(
        acknowledged=pb.Acknowledgement(
            sequence=document.sequence, document_key=document.key, outcome=outcome,
            reference_count=count, content_hash=document.content_hash,
        )
    )  # fmt: skip
