"""Operations: the work that a cold start left for later, one operation for each knowledge base."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import Executor

from memory_model.errors import Memory3Error
from memory_service.access.authorization import Access, Catalogue
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest
from memory_service.stores import KnowledgeBase
from memory_service.write.cold_start import LateMemories, Progress
from protos.memory.v1 import operations_pb2 as pb
from protos.memory.v1 import operations_pb2_grpc

_WRITE_MEMORIES = "write-memories/"


class Operations(operations_pb2_grpc.OperationsServicer):
    """Joins what this process did with what the store says is left."""

    def __init__(self, catalogue: Catalogue, late: LateMemories, readers: Executor) -> None:
        self._catalogue = catalogue
        self._late = late
        self._read = functools.partial(asyncio.get_running_loop().run_in_executor, readers)

    async def ListOperations(
        self, request: pb.ListOperationsRequest, call: Call
    ) -> pb.ListOperationsResponse:
        """See operations.proto."""
        one = request.knowledge_base
        bases = [self._catalogue.find(call.access, one)] if one else self._catalogue.all(call.access)
        return pb.ListOperationsResponse(
            operations=[await self._operation(base, call.access) for base in bases]
        )

    async def GetOperation(self, request: pb.GetOperationRequest, call: Call) -> pb.GetOperationResponse:
        """See operations.proto."""
        if not request.name.startswith(_WRITE_MEMORIES):
            raise BadRequest(
                f"no operation is called {request.name[:80]!r}: expected {_WRITE_MEMORIES}<knowledge base>",
                field="name",
            )
        base = self._catalogue.find(call.access, request.name.removeprefix(_WRITE_MEMORIES))
        return pb.GetOperationResponse(operation=await self._operation(base, call.access))

    async def _operation(self, base: KnowledgeBase, access: Access) -> pb.Operation:
        name = access.seen_name(base.name) or ""
        found = pb.Operation(
            name=_WRITE_MEMORIES + name, kind=pb.OPERATION_KIND_WRITE_MEMORIES, knowledge_base=name
        )
        here = {progress.base.number: progress for progress in self._late.progress()}
        progress = here.get(base.number, Progress(base))
        try:
            statistics = await self._read(self._catalogue.store.statistics, base)
        except Memory3Error as error:  # a damaged one must not hide the others
            found.problem = str(error)
            return found
        done, failed, left = progress.written, progress.failed, statistics.unwritten_documents
        found.progress.documents_done, found.progress.documents_left = done, left
        found.progress.documents_failed, found.done = failed, left == 0
        if left:
            unwritten = f"memories of {failed} documents could not be written: see the service's log"
            found.problem = progress.problem or (unwritten if failed else "")
        return found
