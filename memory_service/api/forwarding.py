"""Calls that another process must answer: passed on as they came, message by message, and its answers back.

Of several processes on one port one writes; a connection lands on any of them. What only the one that writes can
answer goes to its private socket with the caller's metadata, so that it checks the same key again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NoReturn

import grpc

from memory_service.api.methods import METHODS
from protos.memory.v1 import retrieval_pb2

_LOCAL = "/memory.v1.Retrieval/"
_NOT_PASSED_ON = ("user-agent", "grpc-", ":", "te", "content-type")


class Forwarding(grpc.GenericRpcHandler):
    """Answers every method of `memory.v1` but Retrieval's by asking the process behind an address."""

    def __init__(self, address: str) -> None:
        """Belongs to the event loop that it is made on."""
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(address, options=unlimited)
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Called by grpc for each call. A unary call is a stream of one message on the wire."""
        method = handler_call_details.method
        if method not in METHODS or method.startswith(_LOCAL):
            return None
        if method not in self._handlers:
            call = self._channel.stream_stream(method)
            self._handlers[method] = grpc.stream_stream_rpc_method_handler(_Passing(call).behaviour)
        return self._handlers[method]

    async def retrieve(
        self, request: retrieval_pb2.RetrieveRequest, context: grpc.aio.ServicerContext
    ) -> bytes:
        """One retrieval that needs the model: a memory is still to be written."""
        call = self._channel.unary_unary(_LOCAL + "Retrieve", retrieval_pb2.RetrieveRequest.SerializeToString)
        try:
            response: bytes = await call(
                request, timeout=context.time_remaining(), metadata=_metadata(context)
            )
        except grpc.aio.AioRpcError as error:
            await _abort_like(error, context)
        return response


def _metadata(context: grpc.aio.ServicerContext) -> list[tuple[str, str | bytes]]:
    given = context.invocation_metadata() or ()
    return [(key, value) for key, value in given if not key.startswith(_NOT_PASSED_ON)]


async def _abort_like(error: grpc.aio.AioRpcError, context: grpc.aio.ServicerContext) -> NoReturn:
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
    raise error


class _Passing:
    def __init__(self, method: Any) -> None:
        self._method = method

    async def behaviour(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[bytes, None]:
        """Both directions at once; the other process's status and details become the caller's."""
        call = self._method(requests, timeout=context.time_remaining(), metadata=_metadata(context))
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            await _abort_like(error, context)
        finally:
            call.cancel()
