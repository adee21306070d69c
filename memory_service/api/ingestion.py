"""Ingestion: documents up, acknowledgements down (see ingest_stream.py); removing and showing documents."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from memory_service.access.authorization import Scope
from memory_service.access.catalogue import Catalogue
from memory_service.errors import BadRequest, DocumentRefused, ShuttingDown
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


class Ingestion(ingestion_pb2_grpc.IngestionServicer):
    """The write path. `draining` is set when the service is told to stop: streams then finish the batch at hand."""

    def __init__(
        self,
        catalogue: Catalogue,
        encoder: Encoder,
        threads: Threads,
        settings: Settings,
        draining: asyncio.Event,
        late: LateMemories,
    ) -> None:
        self._catalogue = catalogue
        self._encoder = encoder
        self._threads = threads
        self._settings = settings
        self._draining = draining
        self._late = late

    async def Ingest(
        self, request_iterator: AsyncIterator[pb.IngestRequest], context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.IngestResponse, None]:
        """See ingestion.proto."""
        stream = IngestStream(self._catalogue, self._encoder, self._threads, self._settings, self._draining)
        async with contextlib.aclosing(stream.responses(request_iterator)) as responses:
            try:
                async for response in responses:
                    yield response
            finally:
                if stream.base is not None:
                    self._late.look_at(stream.base)

    async def Upsert(self, request: pb.UpsertRequest, context: grpc.aio.ServicerContext) -> pb.UpsertResponse:
        """See ingestion.proto."""
        async with contextlib.aclosing(self.Ingest(_stream_of_one(request), context)) as responses:
            async for response in responses:
                if response.HasField("failed"):
                    failed = response.failed
                    raise DocumentRefused(failed.status, failed.reason, failed.metadata)
                if response.HasField("acknowledged"):
                    return pb.UpsertResponse(acknowledged=response.acknowledged)
        raise ShuttingDown("the service stops; send the document again")

    async def Delete(self, request: pb.DeleteRequest, context: grpc.aio.ServicerContext) -> pb.DeleteResponse:
        """See ingestion.proto."""
        by_filter = request.HasField("filter")
        if by_filter and request.document_keys:
            raise BadRequest("document_keys and filter are both set: send one of them", field="filter")
        condition = read_filter(request.filter) if by_filter else None
        keys = [] if by_filter else _keys(request.document_keys)
        base = self._catalogue.open(request.knowledge_base, Scope.WRITE)
        store, deleted = self._catalogue.store, pb.DeleteResponse()

        def delete_page(after: str | None) -> str | None:
            """In the writer's thread, so that nothing is replaced between filter and deletion."""
            page = keys
            if condition is not None:
                page = store.keys(base, "", after_key=after, count=_MAX_KEYS, filter=condition)
            if page:
                documents, references = store.delete(base, page)
                deleted.documents_deleted += documents
                deleted.references_deleted += references
            return page[-1] if by_filter and page else None

        last = None
        while True:
            last = await asyncio.get_running_loop().run_in_executor(self._threads.write, delete_page, last)
            if last is None:
                return deleted

    async def GetDocument(
        self, request: pb.GetDocumentRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetDocumentResponse:
        """See ingestion.proto."""
        base = self._catalogue.open(request.knowledge_base)
        document = await asyncio.get_running_loop().run_in_executor(
            self._threads.read, self._catalogue.store.document, base, request.document_key
        )
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

    async def GetVersions(
        self, request: pb.GetVersionsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetVersionsResponse:
        """See ingestion.proto."""
        keys = _keys(request.document_keys)
        base = self._catalogue.open(request.knowledge_base)
        stored = await asyncio.get_running_loop().run_in_executor(
            self._threads.read, self._catalogue.store.versions, base, keys
        )
        there = [key for key in dict.fromkeys(keys) if key in stored]
        return pb.GetVersionsResponse(versions=[_version(key, stored[key]) for key in there])

    async def ListDocuments(
        self, request: pb.ListDocumentsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListDocumentsResponse:
        """See ingestion.proto."""
        if request.count > _MAX_KEYS:
            raise BadRequest(f"a page of {request.count} documents, at most {_MAX_KEYS}", field="count")
        condition = read_filter(request.filter) if request.HasField("filter") else None
        after, count = _after(request), request.count or _MAX_KEYS
        base = self._catalogue.open(request.knowledge_base)
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
                    return pb.ListDocumentsResponse(
                        documents=documents, next_page_token=_page_token(keys[-1]) if more else ""
                    )
                after = keys[-1]  # all of them were deleted meanwhile, which is no end of the list

        return await asyncio.get_running_loop().run_in_executor(self._threads.read, page, after)


async def _stream_of_one(request: pb.UpsertRequest) -> AsyncIterator[pb.IngestRequest]:
    """The stream that an Upsert stands for."""
    kind = request.WhichOneof("content")
    if kind is None:
        raise BadRequest("the request has neither a document nor prepared references", field="content")
    start = pb.IngestStart(
        knowledge_base=request.knowledge_base, create_if_missing=request.create_if_missing,
        memory_writing=request.memory_writing, overlap_tokens=request.overlap_tokens,
    )  # fmt: skip
    yield pb.IngestRequest(start=start)
    document = request.document if kind == "document" else None
    prepared = request.prepared if kind == "prepared" else None
    yield pb.IngestRequest(item=pb.IngestItem(document=document, prepared=prepared))


def _after(request: pb.ListDocumentsRequest) -> str | None:
    """The key after which a page begins."""
    if not request.page_token:
        return request.after_key if request.HasField("after_key") else None
    if request.HasField("after_key"):
        raise BadRequest("page_token and after_key are both set: send one of them", field="page_token")
    try:
        return base64.b64decode(request.page_token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise BadRequest("page_token is none that this service made", field="page_token") from None


def _page_token(last_key: str) -> str:
    return base64.urlsafe_b64encode(last_key.encode()).decode()


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
