"""Ingestion: documents up, acknowledgements down (see `write.pipeline`); removing and showing documents."""

from __future__ import annotations

import base64
import contextlib
import functools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from memory3.errors import shortened
from memory_service.access.authorization import Scope
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest, KnowledgeBaseChanged, retryable, to_status
from memory_service.read.query import read_filter
from memory_service.service import Runtime
from memory_service.stores.store import KnowledgeBase, StoredVersion
from memory_service.telemetry.metrics import DOCUMENTS
from memory_service.write.cold_start import LateMemories
from memory_service.write.document import PendingDocument
from memory_service.write.pipeline import IngestStream
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

_MAX_KEYS = 1000
_DOCUMENT_PAGE_BYTES = 3 << 20
"""Of a document's references: with its metadata, less than the 4 MiB that clients of gRPC take if they say nothing."""
_DOCUMENT_PAGE_REFERENCES = 4096
"""That are read from the store at once."""
_START_OF_PAGE = re.compile(r"([0-9]{1,10}) ([0-9a-f]{64})")


class Ingestion(ingestion_pb2_grpc.IngestionServicer):
    """The write path, and what is stored of documents; methods are specified in ingestion.proto."""

    def __init__(self, runtime: Runtime, late: LateMemories) -> None:
        self._runtime = runtime
        self._late = late

    async def Ingest(
        self, request_iterator: AsyncIterator[pb.IngestRequest], call: Call
    ) -> AsyncGenerator[pb.IngestResponse, None]:
        """Documents into one knowledge base."""
        async with self._opened(request_iterator, call) as (stream, base):
            started = pb.IngestStarted(
                knowledge_base=call.knowledge_base,
                document_limit_bytes=self._runtime.settings.document_limit_bytes,
                reference_tokens=self._runtime.encoder.description.reference_tokens,
            )
            yield pb.IngestResponse(started=started)
            async with contextlib.aclosing(stream.batches(base)) as batches:
                async for batch in batches:
                    for document in batch:
                        yield _answer(document, call)
                    yield pb.IngestResponse(progress=stream.progress)

    async def Upsert(self, request: pb.UpsertRequest, call: Call) -> pb.UpsertResponse:
        """One document; raises the error for which it is refused."""
        async with self._opened(_stream_of_one(request), call) as (stream, base):
            [[document]] = [batch async for batch in stream.batches(base)]
        answer = _answer(document, call)
        if document.error is not None:
            raise document.error
        return pb.UpsertResponse(acknowledged=answer.acknowledged)

    @contextlib.asynccontextmanager
    async def _opened(
        self, requests: AsyncIterator[pb.IngestRequest], call: Call
    ) -> AsyncIterator[tuple[IngestStream, KnowledgeBase]]:
        stream = IngestStream(self._runtime, call.access, requests)
        base = await stream.open()
        call.knowledge_base = call.access.seen_name(base.name) or ""
        try:
            yield stream, base
        finally:
            self._late.look_at(base)

    async def Delete(self, request: pb.DeleteRequest, call: Call) -> pb.DeleteResponse:
        """Removes documents by key or by filter."""
        condition = read_filter(request.filter) if request.HasField("filter") else None
        if condition and request.document_keys:
            raise BadRequest("document_keys and filter are both set: send one of them", field="filter")
        keys = [] if condition else _keys(request.document_keys)
        base = await self._runtime.open(call.access, request.knowledge_base, Scope.WRITE)
        store, deleted = self._runtime.store, pb.DeleteResponse()

        def delete_page(after: str | None) -> str | None:
            """In the writer's thread, so that nothing is replaced between filter and deletion."""
            page = keys or store.keys(base, "", after_key=after, count=_MAX_KEYS, filter=condition)
            if not page:
                return None
            documents, references = store.delete(base, page)
            self._runtime.guard.forget(base)
            deleted.documents_deleted += documents
            deleted.references_deleted += references
            return page[-1] if condition else None

        # What is named needs no filter, and does not wait for a large document that is being stored.
        alone: contextlib.AbstractAsyncContextManager[None] = (
            self._runtime.sole_writer(base) if condition else contextlib.nullcontext()
        )
        async with alone:
            last = await self._runtime.run("write", delete_page, None)
            while last is not None:
                last = await self._runtime.run("write", delete_page, last)
        return deleted

    async def GetDocument(self, request: pb.GetDocumentRequest, call: Call) -> pb.GetDocumentResponse:
        """One document with a page of its references."""
        first, version = _start_of_page(request.page_token)
        base = await self._runtime.open(call.access, request.knowledge_base)
        read = functools.partial(self._runtime.store.document, first=first, count=_DOCUMENT_PAGE_REFERENCES)
        document = await self._runtime.run("read", read, base, request.document_key)
        if version not in (b"", document.content_hash):
            raise KnowledgeBaseChanged(
                f"document {shortened(document.key)!r} was replaced since its first page: start anew",
                knowledge_base=base.name,
            )
        found = pb.GetDocumentResponse(
            document_key=document.key,
            title=document.title,
            metadata=document.metadata,
            content_hash=document.content_hash,
            reference_count=document.reference_count,
        )
        found.stored_at.FromDatetime(document.stored_at)
        page_bytes = 0
        for chunk, (memory_id, text) in enumerate(document.references, first):
            if page_bytes >= _DOCUMENT_PAGE_BYTES:
                break
            added = found.references.add(memory_id=memory_id, chunk_number=chunk)
            if request.return_text:
                added.text = text
            page_bytes += added.ByteSize()
        following = first + len(found.references)
        if following < document.reference_count:
            found.next_page_token = _token(f"{following} {document.content_hash.hex()}")
        return found

    async def GetVersions(self, request: pb.GetVersionsRequest, call: Call) -> pb.GetVersionsResponse:
        """Which versions of documents are stored."""
        keys = _keys(request.document_keys)
        base = await self._runtime.open(call.access, request.knowledge_base)
        stored = await self._runtime.run("read", self._runtime.store.versions, base, keys)
        there = [key for key in dict.fromkeys(keys) if key in stored]
        return pb.GetVersionsResponse(versions=[_version(key, stored[key]) for key in there])

    async def ListDocuments(self, request: pb.ListDocumentsRequest, call: Call) -> pb.ListDocumentsResponse:
        """A page of documents in the order of their keys."""
        if request.count > _MAX_KEYS:
            raise BadRequest(f"a page of {request.count} documents, at most {_MAX_KEYS}", field="count")
        condition = read_filter(request.filter) if request.HasField("filter") else None
        first, count = _first_after(request), request.count or _MAX_KEYS
        base = await self._runtime.open(call.access, request.knowledge_base)
        store = self._runtime.store

        def page(after: str | None) -> pb.ListDocumentsResponse:
            while True:
                keys = store.keys(base, request.key_prefix, after_key=after, count=count + 1, filter=condition)
                more, keys = len(keys) > count, keys[:count]
                stored = store.versions(base, keys) if keys else {}
                if stored or not more:
                    documents = [_version(key, stored[key]) for key in keys if key in stored]
                    token = _token(keys[-1]) if more else ""
                    return pb.ListDocumentsResponse(documents=documents, next_page_token=token)
                after = keys[-1]  # all of them were deleted meanwhile, which is no end of the list

        return await self._runtime.run("filter" if condition else "read", page, first)


async def _stream_of_one(request: pb.UpsertRequest) -> AsyncIterator[pb.IngestRequest]:
    """The stream that an Upsert stands for."""
    start = pb.IngestStart(
        knowledge_base=request.knowledge_base,
        create_if_missing=request.create_if_missing,
        memory_writing=request.memory_writing,
        overlap_tokens=request.overlap_tokens,
    )
    yield pb.IngestRequest(start=start)
    document = request.document if request.HasField("document") else None
    prepared = request.prepared if request.HasField("prepared") else None
    yield pb.IngestRequest(item=pb.IngestItem(document=document, prepared=prepared))


def _answer(document: PendingDocument, call: Call) -> pb.IngestResponse:
    """What became of a document, which is counted for the metrics and the audit log."""
    response, key = pb.IngestResponse(), document.key
    if document.error is not None:
        outcome = "failed"
        response.failed.sequence, response.failed.document_key = document.sequence, key
        response.failed.status.CopyFrom(to_status(document.error))
        response.failed.retryable = retryable(document.error)
    else:
        kind, count = pb.INGEST_OUTCOME_UNCHANGED, 0
        if document.unchanged is not None:
            count = len(document.unchanged.memory_ids)
        elif (written := document.written) is not None:
            count = written.reference_count
            if not written.unchanged:
                kind = pb.INGEST_OUTCOME_REPLACED if written.replaced else pb.INGEST_OUTCOME_STORED
        outcome = pb.IngestOutcome.Name(kind).removeprefix("INGEST_OUTCOME_").lower()
        done = pb.Acknowledgement(
            sequence=document.sequence,
            document_key=key,
            outcome=kind,
            reference_count=count,
            content_hash=document.content_hash,
        )
        response.acknowledged.CopyFrom(done)
    call.outcomes[outcome] += 1
    DOCUMENTS.labels(outcome).inc()
    return response


def _first_after(request: pb.ListDocumentsRequest) -> str | None:
    """The key after which a page begins; a token is the last key of the page before in base64."""
    if not request.page_token:
        return request.after_key if request.HasField("after_key") else None
    if request.HasField("after_key"):
        raise BadRequest("page_token and after_key are both set: send one of them", field="page_token")
    return _text_of(request.page_token)


def _start_of_page(token: str) -> tuple[int, bytes]:
    """The chunk with which a page of a document begins, and the content hash of the page before; empty at the first."""
    if not token:
        return 0, b""
    if (start := _START_OF_PAGE.fullmatch(_text_of(token))) is None:
        raise _unknown_token()
    return int(start[1]), bytes.fromhex(start[2])


def _token(text: str) -> str:
    """A page token that says where the next page begins."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def _text_of(token: str) -> str:
    """What `_token` was made of; raises BadRequest."""
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise _unknown_token() from None


def _unknown_token() -> BadRequest:
    return BadRequest("page_token is none that this service made", field="page_token")


def _keys(keys: Sequence[str]) -> list[str]:
    if not 1 <= len(keys) <= _MAX_KEYS:
        raise BadRequest(f"{len(keys)} keys of documents, expected 1 to {_MAX_KEYS}", field="document_keys")
    return list(keys)


def _version(key: str, stored: StoredVersion) -> pb.DocumentVersion:
    return pb.DocumentVersion(
        document_key=key,
        content_hash=stored.content_hash,
        reference_count=len(stored.memory_ids),
        memories_written=stored.written,
    )
