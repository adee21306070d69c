"""What every stream of answers goes through: its key must still be good, and its documents are counted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc

from memory_service.access.authorization import caller
from memory_service.access.keys import KeyRing
from memory_service.api.call_record import CallRecord, record
from memory_service.api.entrance import KINDS
from memory_service.ops.metrics import DOCUMENTS
from protos.memory.v1 import ingestion_pb2 as pb

_OUTCOMES = {
    pb.INGEST_OUTCOME_STORED: "stored",
    pb.INGEST_OUTCOME_REPLACED: "replaced",
    pb.INGEST_OUTCOME_UNCHANGED: "unchanged",
}


class Answers:
    """Stands next to the handlers; only calls that answer with a stream pass through it."""

    def __init__(self, keys: KeyRing | None) -> None:
        """keys: a stream whose key was revoked meanwhile is ended before its next answer."""
        self._keys = keys

    def wrapped(self, handler: Any) -> grpc.RpcMethodHandler:
        """The handler, looked after if it answers with a stream."""
        if not handler.response_streaming:
            return handler
        kind = KINDS[bool(handler.request_streaming), True]
        behaviour = getattr(handler, kind)

        async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncGenerator[Any, None]:
            access, noted = caller(), record.get()
            async with contextlib.aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    if self._keys is not None:
                        self._keys.check(access)
                    if noted is not None and isinstance(response, pb.IngestResponse):
                        _note(response, noted)
                    yield response

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(call, handler.request_deserializer, handler.response_serializer)


def _note(response: pb.IngestResponse, noted: CallRecord) -> None:
    kind = response.WhichOneof("message")
    if kind == "started":
        noted.knowledge_base = response.started.knowledge_base
    elif kind in ("acknowledged", "failed"):
        outcome = (
            _OUTCOMES.get(response.acknowledged.outcome, "stored") if kind == "acknowledged" else "failed"
        )
        noted.outcomes[outcome] += 1
        DOCUMENTS.labels(outcome).inc()
