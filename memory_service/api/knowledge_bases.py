"""KnowledgeBases: create, describe, list, count, export and remove; Operations: what a cold start left for later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp

from memory3.errors import Memory3Error, shortened
from memory3.printable import counted
from memory_service.access.authorization import Access, Scope
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest, KnowledgeBaseChanged, MemoriesUnwritten
from memory_service.ops.cooling import cool
from memory_service.ops.reads import ReadCounter
from memory_service.ops.rewriting import Rewriter
from memory_service.ops.usage import usage_of
from memory_service.service import Runtime
from memory_service.stores.store import KnowledgeBase, SnapshotPage, StoredMemory, require_readable
from memory_service.write.cold_start import LateMemories
from protos.memory.v1 import knowledge_bases_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2_grpc, operations_pb2_grpc
from protos.memory.v1 import operations_pb2 as ops

_PAGE_BYTES = 1 << 20
_PAGE_MEMORIES = 256
_FORMS = (pb.KNOWLEDGE_FORM_TEXT, pb.KNOWLEDGE_FORM_MEMORY, pb.KNOWLEDGE_FORM_WEIGHTS)
_OPERATIONS = {
    "write-memories": ops.OPERATION_KIND_WRITE_MEMORIES,
    "reindex": ops.OPERATION_KIND_REINDEX,
    "rewrite-memories": ops.OPERATION_KIND_REWRITE_MEMORIES,
}


class KnowledgeBases(knowledge_bases_pb2_grpc.KnowledgeBasesServicer):
    """The knowledge bases of the store; methods are specified in knowledge_bases.proto."""

    def __init__(self, runtime: Runtime, reads: ReadCounter) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._reads = reads

    async def CreateKnowledgeBase(
        self, request: pb.CreateKnowledgeBaseRequest, call: Call
    ) -> pb.CreateKnowledgeBaseResponse:
        """An empty one of the service's model."""
        create = self._runtime.create
        base = await self._runtime.run("write", create, call.access, request.name, request.description)
        return pb.CreateKnowledgeBaseResponse(knowledge_base=self._message(base, call.access))

    async def GetKnowledgeBase(self, request: pb.GetKnowledgeBaseRequest, call: Call) -> pb.GetKnowledgeBaseResponse:
        """Its ids and state."""
        base = await self._runtime.find(call.access, request.name)
        return pb.GetKnowledgeBaseResponse(knowledge_base=self._message(base, call.access))

    async def ListKnowledgeBases(
        self, request: pb.ListKnowledgeBasesRequest, call: Call
    ) -> pb.ListKnowledgeBasesResponse:
        """Those that the caller may see."""
        bases = self._runtime.seen_by(call.access)
        return pb.ListKnowledgeBasesResponse(knowledge_bases=[self._message(base, call.access) for base in bases])

    async def DeleteKnowledgeBase(
        self, request: pb.DeleteKnowledgeBaseRequest, call: Call
    ) -> pb.DeleteKnowledgeBaseResponse:
        """With all that is in it; none without its name, unlike elsewhere."""
        if not request.name:
            raise BadRequest("the knowledge base to delete has no name in the request", field="name")
        base = await self._runtime.find(call.access, request.name, Scope.ADMIN)

        def drop() -> None:
            self._store.drop(base)
            self._runtime.guard.forget(base)  # waits where another thread counts what a tenant stores

        await self._runtime.run("write", drop)
        return pb.DeleteKnowledgeBaseResponse()

    async def GetStatistics(self, request: pb.GetStatisticsRequest, call: Call) -> pb.GetStatisticsResponse:
        """Counts and bytes."""
        base = await self._runtime.find(call.access, request.name)
        counts = await self._runtime.run("read", self._store.statistics, base)
        return pb.GetStatisticsResponse(
            document_count=counts.documents,
            reference_count=counts.references,
            payload_bytes=counts.payload_bytes,
            text_bytes=counts.text_bytes,
            stored_bytes=counts.stored_bytes,
            unwritten_document_count=counts.unwritten_documents,
        )

    async def GetUsage(self, request: pb.GetUsageRequest, call: Call) -> pb.GetUsageResponse:
        """Reads by form, with what this process counted and did not store yet."""
        base = await self._runtime.open(call.access, request.name)
        await self._reads.store_all()
        found = await self._runtime.run("read", usage_of, self._store, base, self._runtime.encoder.description)
        return pb.GetUsageResponse(
            groups=[
                pb.UsageGroup(
                    memories_written=group.written,
                    cheapest=_FORMS[group.level],
                    reference_count=group.references,
                    read_count=group.reads,
                    payload_bytes=group.payload_bytes,
                    text_bytes=group.text_bytes,
                )
                for group in found.groups
            ],
            memory_from_reads=found.bounds[0],
            weights_from_reads=found.bounds[1],
            most_read=[
                pb.ReadReference(document_key=one.document_key, chunk_number=one.chunk_number, read_count=one.reads)
                for one in found.most_read
            ],
        )

    async def CoolKnowledgeBase(self, request: pb.CoolKnowledgeBaseRequest, call: Call) -> pb.CoolKnowledgeBaseResponse:
        """Drops the memories of documents that are seldom read; refused where they would be written again unasked."""
        if not 0 <= request.keep_share <= 1:  # also NaN
            raise BadRequest(f"keep_share is {request.keep_share}, expected 0 to 1", field="keep_share")
        base = await self._runtime.open(call.access, request.name, Scope.ADMIN)
        if self._runtime.settings.cold_background:
            raise BadRequest(
                "this service writes late memories in the background: start it with cold_background=false, or what is"
                " dropped would be written again",
                field="name",
            )
        await self._reads.store_all()
        async with self._runtime.sole_writer(base):
            cooled = await self._runtime.run("write_large", cool, self._store, base, request.keep_share)
        self._runtime.guard.forget(base)
        return pb.CoolKnowledgeBaseResponse(
            document_count=cooled.documents, reference_count=cooled.references, payload_bytes=cooled.payload_bytes
        )

    async def ExportKnowledgeBase(
        self, request: pb.ExportKnowledgeBaseRequest, call: Call
    ) -> AsyncIterator[pb.ExportKnowledgeBaseResponse]:
        """All memories, page by page in the order of their ids, as of one revision; or a snapshot.

        Raises KnowledgeBaseChanged, and MemoriesUnwritten before a cold start is over.
        """
        run, store = self._runtime.run, self._store
        base = await self._runtime.open(call.access, request.name)
        require_readable(
            base.identity,
            model_id=request.model_id,
            codec_id=request.codec_id,
            memory_format_id=request.memory_format_id,
            embedder_id=request.embedder_id,
        )
        if request.snapshot:
            if request.HasField("after_id") or request.revision or request.limit or request.while_written:
                raise BadRequest("a snapshot is one stream, from its beginning to its end", field="snapshot")
            async with contextlib.aclosing(self._snapshot(base, call)) as responses:
                async for response in responses:
                    yield response
            return
        revision = await run("read", store.revision, base)
        if request.revision and revision.number != request.revision:
            raise _changed(base)
        counts = await run("read", store.statistics, base)
        if counts.unwritten_documents:
            raise MemoriesUnwritten(
                f"knowledge base {base.name!r} has {counted(counts.unwritten_documents, 'document')} whose memories"
                " are still to be written: try again when `memory-service kb show` counts none; a service with"
                " cold_background=false writes only what is read",
                knowledge_base=base.name,
                documents=counts.unwritten_documents,
            )
        head = pb.ExportHead(
            knowledge_base=self._message(base, call.access),
            revision=revision.number,
            memory_count=revision.memories,
            id_digest=revision.digest,
            payload_bytes=counts.payload_bytes,
            text_bytes=counts.text_bytes,
            rerank_candidates=self._runtime.settings.rerank_candidates,
        )
        yield pb.ExportKnowledgeBaseResponse(head=head)
        per_memory = (counts.payload_bytes + counts.text_bytes) // max(counts.references, 1)
        most = min(max(_PAGE_BYTES // (per_memory + 4 * base.identity.dimension), 1), _PAGE_MEMORIES)
        left = request.limit or None
        after_id = request.after_id if request.HasField("after_id") else None

        def page() -> pb.ExportPage:
            count = most if left is None else min(most, left)
            memories = store.memories(base, after_id=after_id, count=count) if count else []
            if count and not request.while_written and store.revision(base) != revision:
                raise _changed(base)
            return pb.ExportPage(memories=map(_exported, memories))

        while memories := (exported := await run("read", page)).memories:
            after_id = memories[-1].memory_id
            left = None if left is None else left - len(memories)
            yield pb.ExportKnowledgeBaseResponse(page=exported)

    async def _snapshot(self, base: KnowledgeBase, call: Call) -> AsyncGenerator[pb.ExportKnowledgeBaseResponse, None]:
        """The documents of one moment. What holds the moment is let go when the stream ends, however it ends."""
        loop, run = asyncio.get_running_loop(), self._runtime.run
        held = contextlib.ExitStack()
        working: asyncio.Future[pb.ExportPage] | None = None
        try:
            snapshot = await run("read", held.enter_context, self._store.snapshot(base))
            head = pb.ExportHead(
                knowledge_base=self._message(base, call.access),
                revision=snapshot.revision.number,
                memory_count=snapshot.revision.memories,
                id_digest=snapshot.revision.digest,
                rerank_candidates=self._runtime.settings.rerank_candidates,
                document_count=snapshot.documents,
            )
            yield pb.ExportKnowledgeBaseResponse(head=head)
            memories = _each_memory(snapshot.pages)
            while True:
                working = asyncio.ensure_future(run("read", _page_of, memories))
                page = await asyncio.shield(working)
                if not page.memories:
                    return
                yield pb.ExportKnowledgeBaseResponse(page=page)
        finally:
            if working is not None:
                await asyncio.wait({working})  # a thread may still read
            await loop.run_in_executor(None, held.close)

    def _message(self, base: KnowledgeBase, access: Access) -> pb.KnowledgeBase:
        created_at = Timestamp()
        created_at.FromDatetime(base.created_at)
        state, problem = pb.KNOWLEDGE_BASE_STATE_READY, self._runtime.problem_of(base)
        if problem:
            found = pb.KNOWLEDGE_BASE_STATE_DAMAGED if base.damaged else pb.KNOWLEDGE_BASE_STATE_UNAVAILABLE
            state = found if base.problem else pb.KNOWLEDGE_BASE_STATE_MISMATCHED
        identity, name = base.identity, access.seen_name(base.name)
        return pb.KnowledgeBase(
            name=name,
            description=base.description,
            model_id=identity.model_id,
            codec_id=identity.codec_id,
            memory_format_id=identity.memory_format_id,
            embedder_id=identity.embedder_id,
            dimension=identity.dimension,
            created_at=created_at,
            state=state,
            problem=problem,
        )


class Operations(operations_pb2_grpc.OperationsServicer):
    """Three for each knowledge base; joins what this process did with what the store says is left."""

    def __init__(self, runtime: Runtime, late: LateMemories, rewriter: Rewriter) -> None:
        self._runtime = runtime
        self._late = late
        self._rewriter = rewriter

    async def ListOperations(self, request: ops.ListOperationsRequest, call: Call) -> ops.ListOperationsResponse:
        """See operations.proto."""
        one = request.knowledge_base
        bases = [await self._runtime.find(call.access, one)] if one else self._runtime.seen_by(call.access)
        found = [await self._operation(what, base, call.access) for what in sorted(_OPERATIONS) for base in bases]
        return ops.ListOperationsResponse(operations=found)

    async def GetOperation(self, request: ops.GetOperationRequest, call: Call) -> ops.GetOperationResponse:
        """See operations.proto."""
        what, _, name = request.name.partition("/")
        if what not in _OPERATIONS:
            expected = " or ".join(f"{known}/<knowledge base>" for known in _OPERATIONS)
            message = f"no operation is called {shortened(request.name, 80)!r}: expected {expected}"
            raise BadRequest(message, field="name")
        base = await self._runtime.find(call.access, name)
        return ops.GetOperationResponse(operation=await self._operation(what, base, call.access))

    async def _operation(self, what: str, base: KnowledgeBase, access: Access) -> ops.Operation:
        name = access.seen_name(base.name) or ""
        found = ops.Operation(name=f"{what}/{name}", kind=_OPERATIONS[what], knowledge_base=name)
        try:
            statistics = await self._runtime.run("read", self._runtime.store.statistics, base)
        except Memory3Error as error:  # one that cannot be used must not hide the others
            found.problem = str(error)
            return found
        if found.kind == ops.OPERATION_KIND_REWRITE_MEMORIES:
            rewritten = self._rewriter.progress(base)
            found.progress.documents_done, found.progress.documents_left = rewritten.done, rewritten.left
            found.progress.documents_failed, found.problem = rewritten.failed, rewritten.problem
            found.done = not self._rewriter.under_way(base)
            return found
        if found.kind == ops.OPERATION_KIND_REINDEX:
            found.progress.references_done, found.progress.references_left = statistics.reindexed, statistics.unindexed
            found.done = not statistics.unindexed
            return found
        progress = self._late.progress(base)
        done, failed, left = progress.written, progress.failed, statistics.unwritten_documents
        found.progress.documents_done, found.progress.documents_left = done, left
        background = self._runtime.settings.cold_background
        found.progress.documents_failed, found.done = failed, left == 0 or not background
        if left:
            unwritten = f"memories of {counted(failed, 'document')} could not be written: see the service's log"
            found.problem = progress.problem or (unwritten if failed else "")
        return found


def _changed(base: KnowledgeBase) -> KnowledgeBaseChanged:
    return KnowledgeBaseChanged(
        f"knowledge base {base.name!r} was written to since its export began: start anew", knowledge_base=base.name
    )


def _each_memory(pages: Iterator[SnapshotPage]) -> Iterator[tuple[SnapshotPage, StoredMemory]]:
    """The memories of a snapshot, each with its page: so many as a page has may be more than a message takes."""
    for page in pages:
        for memory in page.memories:
            yield page, memory


def _page_of(memories: Iterator[tuple[SnapshotPage, StoredMemory]]) -> pb.ExportPage:
    """The next memories of a snapshot as a page of the wire, with their documents; empty at the end."""
    page, page_bytes = pb.ExportPage(), 0
    while page_bytes < _PAGE_BYTES and (following := next(memories, None)) is not None:
        (document, _), memory = following
        if memory.chunk_number == 0:
            added = page.documents.add(
                document_key=document.key,
                title=document.title,
                metadata=document.metadata,
                content_hash=document.content_hash,
                memories_written=document.written,
                reference_count=document.reference_count,
            )
            page_bytes += added.ByteSize()
        page.memories.append(_exported(memory))
        page_bytes += page.memories[-1].ByteSize()
    return page


def _exported(memory: StoredMemory) -> pb.ExportedMemory:
    return pb.ExportedMemory(
        memory_id=memory.memory_id,
        document_key=memory.document_key,
        title=memory.title,
        chunk_number=memory.chunk_number,
        text=memory.text,
        vector=np.ascontiguousarray(memory.vector, "<f4").tobytes(),
        payload=bytes(memory.payload),
        payload_crc32c=memory.crc32c,
    )
