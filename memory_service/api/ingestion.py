"""Ingestion: documents up, acknowledgements down (see ingest_stream.py); removing and showing documents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from memory_service.access.authorization import Catalogue, Scope
from memory_service.access.quotas import WriteGuard
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest
from memory_service.ops.metrics import DOCUMENTS
from memory_service.ops.tracing import span
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

    async def Ingest(
        self, request_iterator: AsyncIterator[pb.IngestRequest], call: Call
    ) -> AsyncGenerator[pb.IngestResponse, None]:
        """See ingestion.proto."""
        stream = IngestStream(
            call.access,
            self._catalogue,
            self._guard,
            self._encoder,
            self._threads,
            self._settings,
            self._draining,
        )
        async with contextlib.aclosing(stream.responses(request_iterator)) as responses:
            try:
                async for response in responses:
                    _note(response, call)
                    yield response
            finally:
                if stream.base is not None:
                    self._late.look_at(stream.base)

    async def Delete(self, request: pb.DeleteRequest, call: Call) -> pb.DeleteResponse:
        """See ingestion.proto."""
        keys = _keys(request.document_keys)
        base = self._catalogue.open(call.access, request.knowledge_base, Scope.WRITE)
        with span("store.delete", documents=len(keys)):
            documents, references = await asyncio.get_running_loop().run_in_executor(
                self._threads.write, self._catalogue.store.delete, base, keys
            )
        self._guard.forget(base)
        return pb.DeleteResponse(documents_deleted=documents, references_deleted=references)

    async def GetDocument(self, request: pb.GetDocumentRequest, call: Call) -> pb.GetDocumentResponse:
        """See ingestion.proto."""
        base = self._catalogue.open(call.access, request.knowledge_base)
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

    async def GetVersions(self, request: pb.GetVersionsRequest, call: Call) -> pb.GetVersionsResponse:
        """See ingestion.proto."""
        keys = _keys(request.document_keys)
        base = self._catalogue.open(call.access, request.knowledge_base)
        stored = await asyncio.get_running_loop().run_in_executor(
            self._threads.read, self._catalogue.store.versions, base, keys
        )
        there = [key for key in dict.fromkeys(keys) if key in stored]
        return pb.GetVersionsResponse(versions=[_version(key, stored[key]) for key in there])

    async def ListDocuments(self, request: pb.ListDocumentsRequest, call: Call) -> pb.ListDocumentsResponse:
        """See ingestion.proto."""
        if request.count > _MAX_KEYS:
            raise BadRequest(f"a page of {request.count} documents, at most {_MAX_KEYS}", field="count")
        base = self._catalogue.open(call.access, request.knowledge_base)
        after = request.after_key if request.HasField("after_key") else None
        count = request.count or _MAX_KEYS

        def page() -> dict[str, StoredVersion]:
            while keys := self._catalogue.store.keys(base, request.key_prefix, after_key=after, count=count):
                stored = self._catalogue.store.versions(base, keys)
                if stored:  # all of them may have been deleted meanwhile: that is no end of the list
                    return {key: stored[key] for key in keys if key in stored}
            return {}

        stored = await asyncio.get_running_loop().run_in_executor(self._threads.read, page)
        return pb.ListDocumentsResponse(documents=[_version(key, one) for key, one in stored.items()])


def _note(response: pb.IngestResponse, call: Call) -> None:
    """Counts an answer to a document, for the metrics and the audit log."""
    kind = response.WhichOneof("message")
    if kind == "started":
        call.knowledge_base = response.started.knowledge_base
    elif kind in ("acknowledged", "failed"):
        outcome = "failed"
        if kind == "acknowledged":
            outcome = (
                pb.IngestOutcome.Name(response.acknowledged.outcome).removeprefix("INGEST_OUTCOME_").lower()
            )
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
