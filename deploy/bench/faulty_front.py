"""A front before a real service that makes it slow or its answers wrong: what the network and broken disks do."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc

from deploy.bench.side_process import Ready
from protos.memory.v1 import retrieval_pb2

_LIMITS = (("grpc.max_send_message_length", 64 << 20), ("grpc.max_receive_message_length", 64 << 20))
_RETRIEVE = "/memory.v1.Retrieval/Retrieve"


@dataclass(frozen=True)
class Fault:
    """delay_s: before every answer to a retrieval. corrupt: one byte of every payload is flipped, checksums stay."""

    delay_s: float = 0.0
    corrupt: bool = False


def serve(ready: Ready, target: str, fault: Fault) -> None:
    """Forward unary calls to `target` from a free port of loopback until the process is ended."""
    channel = grpc.insecure_channel(target, options=_LIMITS)
    server = grpc.server(
        futures.ThreadPoolExecutor(16), handlers=[_Forwarding(channel, fault)], options=_LIMITS
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready(port)
    server.wait_for_termination()


def flip_payloads(response: bytes) -> bytes:
    """A RetrieveResponse whose every payload has one wrong byte."""
    message = retrieval_pb2.RetrieveResponse.FromString(response)
    for result in message.results:
        for hit in result.hits:
            if payload := bytearray(hit.payload):
                payload[len(payload) // 2] ^= 0xFF
                hit.payload = bytes(payload)
    return message.SerializeToString()


class _Forwarding(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.Channel, fault: Fault) -> None:
        self._channel, self._fault = channel, fault

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        call: Callable[..., bytes] = self._channel.unary_unary(method)  # bytes in, bytes out

        def forward(request: bytes, context: grpc.ServicerContext) -> Any:
            try:
                response = call(request, timeout=context.time_remaining())
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            if method == _RETRIEVE:
                time.sleep(self._fault.delay_s)
                return flip_payloads(response) if self._fault.corrupt else response
            return response

        return grpc.unary_unary_rpc_method_handler(forward)
