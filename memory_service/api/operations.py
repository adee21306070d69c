"""Operations: the work that a cold start left for later, one operation for each knowledge base."""

from __future__ import annotations

from memory_model.errors import Memory3Error
from memory_service.access.authorization import Access
from memory_service.api.interceptors import Call
from memory_service.errors import BadRequest
from memory_service.stores import KnowledgeBase
from memory_service.write.cold_start import LateMemories
from memory_service.write.runtime import Runtime
from protos.memory.v1 import operations_pb2 as pb
from protos.memory.v1 import operations_pb2_grpc

_WRITE_MEMORIES = "write-memories/"


class Operations(operations_pb2_grpc.OperationsServicer):
    """Joins what this process did with what the store says is left."""

    def __init__(self, runtime: Runtime, late: LateMemories) -> None:
        self._runtime = runtime
        self._late = late

    async def ListOperations(self, request: pb.ListOperationsRequest, call: Call) -> pb.ListOperationsResponse:
        """See operations.proto."""
        one = request.knowledge_base
        bases = [await self._runtime.find(call.access, one)] if one else self._runtime.seen_by(call.access)
        return pb.ListOperationsResponse(operations=[await self._operation(base, call.access) for base in bases])

    async def GetOperation(self, request: pb.GetOperationRequest, call: Call) -> pb.GetOperationResponse:
        """See operations.proto."""
        if not request.name.startswith(_WRITE_MEMORIES):
            raise BadRequest(
                f"no operation is called {request.name[:80]!r}: expected {_WRITE_MEMORIES}<knowledge base>",
                field="name",
            )
        base = await self._runtime.find(call.access, request.name.removeprefix(_WRITE_MEMORIES))
        return pb.GetOperationResponse(operation=await self._operation(base, call.access))

    async def _operation(self, base: KnowledgeBase, access: Access) -> pb.Operation:
        name = access.seen_name(base.name) or ""
        found = pb.Operation(name=_WRITE_MEMORIES + name, kind=pb.OPERATION_KIND_WRITE_MEMORIES, knowledge_base=name)
        progress = self._late.progress(base)
        try:
            statistics = await self._runtime.run("read", self._runtime.store.statistics, base)
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
