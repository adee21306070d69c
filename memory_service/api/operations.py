"""Operations: the work that a cold start left for later, one operation for each knowledge base."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import grpc

from memory_model.errors import Memory3Error
from memory_service.access.catalogue import Catalogue
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
        self._readers = readers

    async def ListOperations(
        self, request: pb.ListOperationsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListOperationsResponse:
        """See operations.proto."""
        one = request.knowledge_base
        bases = [self._catalogue.find(one)] if one else self._catalogue.all()
        return pb.ListOperationsResponse(operations=[await self._operation(base) for base in bases])

    async def GetOperation(
        self, request: pb.GetOperationRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetOperationResponse:
        """See operations.proto."""
        if not request.name.startswith(_WRITE_MEMORIES):
            raise BadRequest(
                f"no operation is called {request.name[:80]!r}: expected {_WRITE_MEMORIES}<knowledge base>",
                field="name",
            )
        base = self._catalogue.find(request.name.removeprefix(_WRITE_MEMORIES))
        return pb.GetOperationResponse(operation=await self._operation(base))

    async def _operation(self, base: KnowledgeBase) -> pb.Operation:
        name = self._catalogue.seen_name(base)
        found = pb.Operation(
            name=_WRITE_MEMORIES + name, kind=pb.OPERATION_KIND_WRITE_MEMORIES, knowledge_base=name
        )
        here = {progress.base.number: progress for progress in self._late.progress()}
        progress = here.get(base.number, Progress(base))
        try:
            statistics = await asyncio.get_running_loop().run_in_executor(
                self._readers, self._catalogue.store.statistics, base
            )
        except Memory3Error as error:  # a damaged one must not hide the others
            found.problem = str(error)
            return found
        left = statistics.unwritten_documents
        found.progress.documents_done = progress.written
        found.progress.documents_left = left
        found.progress.documents_failed = progress.failed
        found.done = left == 0
        found.problem = "" if found.done else progress.problem
        return found
