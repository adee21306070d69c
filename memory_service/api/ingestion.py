"""Ingestion: documents up, acknowledgements down (see `write.pipeline`); removing and showing documents."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from memory_service.access.authorization import Catalogue, Scope
from memory_service.access.quotas import WriteGuard
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest, ServiceError, ShuttingDown
from memory_service.ops.metrics import DOCUMENTS
from memory_service.ops.tracing import span
from memory_service.read.query import read_filter
from memory_service.settings import Settings
from memory_service.stores import StoredVersion
from memory_service.write.cold_start import LateMemories
from memory_service.write.content_hash import is_unwritten, real_hash
from memory_service.write.encoder import Encoder
from memory_service.write.pipeline import IngestStream, Threads
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

_MAX_KEYS = 1000


class _Refused(ServiceError):
    """The document of an Upsert was refused, with the status of its failure."""

    def __init__(self, failed: pb.DocumentFailure) -> None:
        super().__init__(failed.message)
        self.code = next(code for code in grpc.StatusCode if code.value[0] == failed.code)
        self.reason, self.details, self.status = failed.reason, dict(failed.metadata), failed.status


class Ingestion(ingestion_pb2_grpc.IngestionServicer):
    """The write path. `draining` is set when the service is told to stop: streams then finish the batch at hand."""

    def __init__(
        self,
        catalogue: Catalogue,
        guard: WriteGuard,
        encoder: Encoder,
        threads: Threads,
        settings: Settings,
        draining: asyncio.Event,
        late: LateMemories,
    ) -> None:
        self._catalogue = catalogue
        self._guard = guard
        self._encoder = encoder
        self._threads = threads
        self._settings = settings
        self._draining = draining
        self._late = late
        self._read = functools.partial(asyncio.get_running_loop().run_in_executor, threads.read)

    async def Ingest(
        self, request_iterator: AsyncIterator[pb.IngestRequest], call: Call
    ) -> AsyncGenerator[pb.IngestResponse, None]:
        """See ingestion.proto."""
        stream = IngestStream(
            call.access, self._catalogue, self._guard, self._encoder, self._threads, self._settings, self._draining
        )  # fmt: skip
        async with contextlib.aclosing(stream.responses(request_iterator)) as responses:
            try:
                async for response in responses:
                    _note(response, call)
                    yield response
            finally:
                if stream.base is not None:
                    self._late.look_at(stream.base)

    async def Upsert(self, request: pb.UpsertRequest, call: Call) -> pb.UpsertResponse:
        """See ingestion.proto."""
        async with contextlib.aclosing(self.Ingest(_stream_of_one(request), call)) as responses:
            async for response in responses:
                if response.HasField("failed"):
                    raise _Refused(response.failed)
                if response.HasField("acknowledged"):
                    return pb.UpsertResponse(acknowledged=response.acknowledged)
        raise ShuttingDown("the service stops; send the document again")

    async def Delete(self, request: pb.DeleteRequest, call: Call) -> pb.DeleteResponse:
        """See ingestion.proto."""
        condition = read_filter(request.filter) if request.HasField("filter") else None
        if condition and request.document_keys:
            raise BadRequest("document_keys and filter are both set: send one of them", field="filter")
        keys = [] if condition else _keys(request.document_keys)
        base = self._catalogue.open(call.access, request.knowledge_base, Scope.WRITE)
        store, deleted = self._catalogue.store, pb.DeleteResponse()

        def delete_page(after: str | None) -> str | None:
            """In the writer's thread, so that nothing is replaced between filter and deletion."""
            page = keys or store.keys(base, "", after_key=after, count=_MAX_KEYS, filter=condition)
            if not page:
                return None
            documents, references = store.delete(base, page)
            self._guard.forget(base)
            deleted.documents_deleted += documents
            deleted.references_deleted += references
            return page[-1] if condition else None

        write = functools.partial(asyncio.get_running_loop().run_in_executor, self._threads.write)
        with span("store.delete"):
            last = await write(delete_page, None)
            while last is not None:
                last = await write(delete_page, last)
        return deleted

    async def GetDocument(self, request: pb.GetDocumentRequest, call: Call) -> pb.GetDocumentResponse:
        """See ingestion.proto."""
        base = self._catalogue.open(call.access, request.knowledge_base)
        document = await self._read(self._catalogue.store.document, base, request.document_key)
        stored_at = Timestamp()
        stored_at.FromDatetime(document.stored_at)
        ids = [memory_id for memory_id, _ in document.references]
        content_hash = real_hash(document.key, document.content_hash, ids)
        references = [
            pb.StoredReference(
                memory_id=memory_id, chunk_number=chunk, text=text if request.return_text else None
            )
            for chunk, (memory_id, text) in enumerate(document.references)
        ]
        return pb.GetDocumentResponse(
            document_key=document.key, title=document.title, metadata=document.metadata,
            content_hash=content_hash, stored_at=stored_at, references=references,
        )  # fmt: skip

    async def GetVersions(self, request: pb.GetVersionsRequest, call: Call) -> pb.GetVersionsResponse:
        """See ingestion.proto."""
        keys = _keys(request.document_keys)
        base = self._catalogue.open(call.access, request.knowledge_base)
        stored = await self._read(self._catalogue.store.versions, base, keys)
        there = [key for key in dict.fromkeys(keys) if key in stored]
        return pb.GetVersionsResponse(versions=[_version(key, stored[key]) for key in there])

    async def ListDocuments(self, request: pb.ListDocumentsRequest, call: Call) -> pb.ListDocumentsResponse:
        """See ingestion.proto."""
        if request.count > _MAX_KEYS:
            raise BadRequest(f"a page of {request.count} documents, at most {_MAX_KEYS}", field="count")
        condition = read_filter(request.filter) if request.HasField("filter") else None
        after, count = _after(request), request.count or _MAX_KEYS
        base = self._catalogue.open(call.access, request.knowledge_base)
        store = self._catalogue.store

        def page(after: str | None) -> pb.ListDocumentsResponse:
            while True:
                keys = store.keys(
                    base, request.key_prefix, after_key=after, count=count + 1, filter=condition
                )
                more, keys = len(keys) > count, keys[:count]
                stored = store.versions(base, keys) if keys else {}
                if stored or not more:
                    documents = [_version(key, stored[key]) for key in keys if key in stored]
                    token = base64.urlsafe_b64encode(keys[-1].encode()).decode() if more else ""
                    return pb.ListDocumentsResponse(documents=documents, next_page_token=token)
                after = keys[-1]  # all of them were deleted meanwhile, which is no end of the list

        return await self._read(page, after)


async def _stream_of_one(request: pb.UpsertRequest) -> AsyncIterator[pb.IngestRequest]:
    """The stream that an Upsert stands for."""
    start = pb.IngestStart(
        knowledge_base=request.knowledge_base, create_if_missing=request.create_if_missing,
        memory_writing=request.memory_writing, overlap_tokens=request.overlap_tokens,
    )  # fmt: skip
    yield pb.IngestRequest(start=start)
    document = request.document if request.HasField("document") else None
    prepared = request.prepared if request.HasField("prepared") else None
    yield pb.IngestRequest(item=pb.IngestItem(document=document, prepared=prepared))


def _after(request: pb.ListDocumentsRequest) -> str | None:
    """The key after which a page begins; a token is the last key of the page before in base64."""
    if not request.page_token:
        return request.after_key if request.HasField("after_key") else None
    if request.HasField("after_key"):
        raise BadRequest("page_token and after_key are both set: send one of them", field="page_token")
    try:
        return base64.b64decode(request.page_token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise BadRequest("page_token is none that this service made", field="page_token") from None


def _note(response: pb.IngestResponse, call: Call) -> None:
    """Counts an answer to a document, for the metrics and the audit log."""
    kind = response.WhichOneof("message")
    if kind == "started":
        call.knowledge_base = response.started.knowledge_base
    elif kind in ("acknowledged", "failed"):
        name = pb.IngestOutcome.Name(response.acknowledged.outcome).removeprefix("INGEST_OUTCOME_")
        outcome = name.lower() if kind == "acknowledged" else "failed"
        call.outcomes[outcome] += 1
        DOCUMENTS.labels(outcome).inc()


def _keys(keys: Sequence[str]) -> list[str]:
    if not 1 <= len(keys) <= _MAX_KEYS:
        raise BadRequest(f"{len(keys)} keys of documents, expected 1 to {_MAX_KEYS}", field="document_keys")
    return list(keys)


def _version(key: str, stored: StoredVersion) -> pb.DocumentVersion:
    return pb.DocumentVersion(
        document_key=key, content_hash=real_hash(key, stored.content_hash, stored.memory_ids),
        reference_count=len(stored.memory_ids),
        memories_written=not is_unwritten(key, stored.content_hash, stored.memory_ids),
    )  # fmt: skip
