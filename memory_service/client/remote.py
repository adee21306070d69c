"""The other end of the wire, for the commands: a channel to the service, and its errors for people."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from memory_model.errors import Memory3Error
from memory_service.client.connection import Connection

_RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class RemoteError(Memory3Error):
    """The service refused a call or cannot be reached; reason is the stable name, such as MODEL_MISMATCH, or empty."""

    def __init__(self, message: str, code: grpc.StatusCode, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed a little later."""
        return self.code in _RETRYABLE


def remote_error(error: grpc.RpcError, address: str) -> RemoteError:
    """The error of a call as ours, with the reason from its google.rpc.ErrorInfo."""
    code, message, reason = error.code(), error.details() or "", ""
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            reason = info.reason
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) and not reason:
        message = f"no memory service answers at {address} ({message}): start it with `memory-service serve`"
    return RemoteError(message, code, reason)


def channel_to(address: str) -> grpc.aio.Channel:
    """An asynchronous channel to the service, with TLS and API key as the environment says."""
    return Connection().channel(address)
