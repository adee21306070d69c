"""KnowledgeBases: create, describe, list, count, export and remove."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from concurrent.futures import Executor

from google.protobuf.timestamp_pb2 import Timestamp

from memory_service.access.authorization import Access, Catalogue, Scope
from memory_service.access.quotas import WriteGuard
from memory_service.api.export import Export
from memory_service.api.interceptors import Call
from memory_service.settings import Settings
from memory_service.stores import KnowledgeBase
from memory_service.stores.identity import require_readable
from protos.memory.v1 import knowledge_bases_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2_grpc


class KnowledgeBases(knowledge_bases_pb2_grpc.KnowledgeBasesServicer):
    """The knowledge bases of the store. What changes the store runs in the writers' thread."""

    def __init__(
        self,
        catalogue: Catalogue,
        guard: WriteGuard,
        readers: Executor,
        writers: Executor,
        settings: Settings,
    ) -> None:
        self._catalogue = catalogue
        self._guard = guard
        run = asyncio.get_running_loop().run_in_executor
        self._read, self._write = functools.partial(run, readers), functools.partial(run, writers)
        self._settings = settings

    async def CreateKnowledgeBase(
        self, request: pb.CreateKnowledgeBaseRequest, call: Call
    ) -> pb.CreateKnowledgeBaseResponse:
        """See knowledge_bases.proto."""
        base = await self._write(self._catalogue.create, call.access, request.name, request.description)
        return pb.CreateKnowledgeBaseResponse(knowledge_base=self._message(base, call.access))

    async def GetKnowledgeBase(
        self, request: pb.GetKnowledgeBaseRequest, call: Call
    ) -> pb.GetKnowledgeBaseResponse:
        """See knowledge_bases.proto."""
        base = self._catalogue.find(call.access, request.name)
        return pb.GetKnowledgeBaseResponse(knowledge_base=self._message(base, call.access))

    async def ListKnowledgeBases(
        self, request: pb.ListKnowledgeBasesRequest, call: Call
    ) -> pb.ListKnowledgeBasesResponse:
        """See knowledge_bases.proto."""
        bases = self._catalogue.all(call.access)
        return pb.ListKnowledgeBasesResponse(
            knowledge_bases=[self._message(base, call.access) for base in bases]
        )

    async def DeleteKnowledgeBase(
        self, request: pb.DeleteKnowledgeBaseRequest, call: Call
    ) -> pb.DeleteKnowledgeBaseResponse:
        """See knowledge_bases.proto."""
        base = self._catalogue.find(call.access, request.name, Scope.ADMIN)
        await self._write(self._catalogue.store.drop, base)
        self._guard.forget(base)
        return pb.DeleteKnowledgeBaseResponse()

    async def GetStatistics(self, request: pb.GetStatisticsRequest, call: Call) -> pb.GetStatisticsResponse:
        """See knowledge_bases.proto."""
        base = self._catalogue.find(call.access, request.name)
        counts = await self._read(self._catalogue.store.statistics, base)
        return pb.GetStatisticsResponse(
            document_count=counts.documents, reference_count=counts.references, payload_bytes=counts.payload_bytes,
            text_bytes=counts.text_bytes, stored_bytes=counts.stored_bytes,
            unwritten_document_count=counts.unwritten_documents,
        )  # fmt: skip

    async def ExportKnowledgeBase(
        self, request: pb.ExportKnowledgeBaseRequest, call: Call
    ) -> AsyncIterator[pb.ExportKnowledgeBaseResponse]:
        """See knowledge_bases.proto."""
        base = self._catalogue.open(call.access, request.name)
        require_readable(
            base.identity, model_id=request.model_id, codec_id=request.codec_id,
            memory_format_id=request.memory_format_id, embedder_id=request.embedder_id,
        )  # fmt: skip
        after_id = request.after_id if request.HasField("after_id") else None
        export = Export(
            self._catalogue.store, base, after_id, request.revision, request.limit, request.while_written
        )
        head = await self._read(export.head)
        head.knowledge_base.CopyFrom(self._message(base, call.access))
        head.rerank_candidates = self._settings.rerank_candidates
        yield pb.ExportKnowledgeBaseResponse(head=head)
        while page := await self._read(export.page):
            yield pb.ExportKnowledgeBaseResponse(page=page)

    def _message(self, base: KnowledgeBase, access: Access) -> pb.KnowledgeBase:
        created_at = Timestamp()
        created_at.FromDatetime(base.created_at)
        mismatch = self._catalogue.mismatch(base)
        state = pb.KNOWLEDGE_BASE_STATE_READY
        if base.problem:
            state = pb.KNOWLEDGE_BASE_STATE_DAMAGED
        elif mismatch:
            state = pb.KNOWLEDGE_BASE_STATE_MISMATCHED
        identity, name = base.identity, access.seen_name(base.name)
        return pb.KnowledgeBase(
            name=name, description=base.description, model_id=identity.model_id, codec_id=identity.codec_id,
            memory_format_id=identity.memory_format_id, embedder_id=identity.embedder_id, dimension=identity.dimension,
            created_at=created_at, state=state, problem=base.problem or mismatch,
        )  # fmt: skip
