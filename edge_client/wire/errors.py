"""gRPC's errors as `RetrievalError`, mapped once for all calls: status, google.rpc details, and failed handshakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from edge_client.errors import RetrievalError

DETAILS_KEY = "grpc-status-details-bin"
_Code = grpc.StatusCode
BY_STATUS: dict[grpc.StatusCode, str] = {
    _Code.CANCELLED: "UNREACHABLE",
    _Code.UNKNOWN: "SERVICE_FAILED",
    _Code.INVALID_ARGUMENT: "INVALID_REQUEST",
    _Code.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    _Code.NOT_FOUND: "INVALID_REQUEST",
    _Code.ALREADY_EXISTS: "INVALID_REQUEST",
    _Code.PERMISSION_DENIED: "ACCESS_REFUSED",
    _Code.RESOURCE_EXHAUSTED: "OVERLOADED",
    _Code.FAILED_PRECONDITION: "INCOMPATIBLE",
    _Code.ABORTED: "INVALID_REQUEST",
    _Code.OUT_OF_RANGE: "INVALID_REQUEST",
    _Code.UNIMPLEMENTED: "INCOMPATIBLE",
    _Code.INTERNAL: "SERVICE_FAILED",
    _Code.UNAVAILABLE: "UNREACHABLE",
    _Code.DATA_LOSS: "SERVICE_FAILED",
    _Code.UNAUTHENTICATED: "ACCESS_REFUSED",
}
"""The reason of an error to which the service gives none itself."""
UNAVAILABLE = frozenset({_Code.CANCELLED, _Code.DEADLINE_EXCEEDED, _Code.RESOURCE_EXHAUSTED, _Code.UNAVAILABLE})
"""The service gave no answer: it is left alone for a while, and a pack may answer instead."""
_HELP_BY_REASON = {
    "KNOWLEDGE_BASE_NOT_FOUND": "name one of `memory-service kb list` with --knowledge-base, or ingest into it first",
    "KNOWLEDGE_BASE_DAMAGED": "its operator restores a backup (`memory-service kb show` has the problem)",
    "MODEL_MISMATCH": "fetch the bundle that this service offers with `edge-client pull`",
    "CODEC_MISMATCH": "fetch the bundle that this service offers with `edge-client pull`",
    "FORMAT_MISMATCH": "fetch the bundle that this service offers with `edge-client pull`",
    "EMBEDDER_MISMATCH": "fetch the bundle that this service offers with `edge-client pull`",
    "BUNDLE_NOT_CONFIGURED": "copy a bundle made with `memory-model export`",
    "OVERLOADED": "ask again a little later",
}
_HELP_BY_STATUS = {
    _Code.UNAUTHENTICATED: "give the API key with EDGE_CLIENT_API_KEY",
    _Code.PERMISSION_DENIED: "ask the service's operator to permit it for this API key",
    _Code.UNIMPLEMENTED: "the service is older than this client: update it",
    _Code.INTERNAL: "the service's log has the cause",
}
_NAME_CA = "name the authority's file (EDGE_CLIENT_CA)"
# What BoringSSL and gRPC say in the details of UNAVAILABLE when a handshake fails, and what it means.
_HANDSHAKES = (
    ("certificate has expired", "its certificate has expired", "have it renewed, or set this device's clock"),
    ("certificate is not yet valid", "its certificate is not valid yet", "set this device's clock"),
    ("Hostname Verification", "its certificate is for another name",
     "use a name that the certificate has, or say it (EDGE_CLIENT_SERVER_NAME)"),
    ("unable to get local issuer", "its certificate's issuer is unknown here", _NAME_CA),
    ("self signed certificate", "its certificate's issuer is unknown here", _NAME_CA),
    ("self-signed certificate", "its certificate's issuer is unknown here", _NAME_CA),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not accepted", _NAME_CA),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS there", "leave TLS off, or name its TLS port"),
    ("CERTIFICATE_REQUIRED", "it asks for this device's certificate", "set EDGE_CLIENT_CERTIFICATE, EDGE_CLIENT_KEY"),
    ("handshake failed", "the TLS handshake failed", "see `edge-client doctor`"),
)  # fmt: skip


@contextmanager
def named_errors(address: str, timeout_s: float) -> Iterator[None]:
    """Raises what gRPC raises in the block, in threads and in asyncio, as a RetrievalError.

    address, timeout_s: of the calls in the block.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise call_error(error, address, timeout_s) from error
    except (grpc.aio.UsageError, ValueError) as error:  # what gRPC raises for a channel that is closed
        raise _unanswered("UNREACHABLE", f"the connection to {address} was closed here") from error


def call_error(error: grpc.RpcError, address: str, timeout_s: float) -> RetrievalError:
    """The error of a call to `address` that had `timeout_s` seconds; works for calls of threads and of asyncio."""
    call: Any = error
    # A call raises itself, so it would hold the frames it was raised in, and these hold it: everything that the recall
    # had in hand, the embedder's session too, would wait for the next run of Python's collector.
    error.__traceback__ = None
    code, message = call.code(), call.details() or ""
    reason, help, retry_after_s = _details(call)
    if code is _Code.DEADLINE_EXCEEDED and not reason:
        return _unanswered(BY_STATUS[code], f"the service at {address} did not answer within {timeout_s:.3g} s")
    if code is _Code.CANCELLED:
        return _unanswered(BY_STATUS[code], f"the call to {address} was cancelled")
    if code is _Code.UNAVAILABLE and not reason:
        return _unreachable(address, message)
    return RetrievalError(
        f"the service at {address} refused ({reason or code.name}): {message}",
        reason=reason or BY_STATUS.get(code, "SERVICE_FAILED"), unavailable=code in UNAVAILABLE,
        help=help or _HELP_BY_REASON.get(reason) or _HELP_BY_STATUS.get(code, ""), retry_after_s=retry_after_s,
    )  # fmt: skip


def _unanswered(reason: str, message: str, help: str = "") -> RetrievalError:
    return RetrievalError(message, reason=reason, unavailable=True, help=help)


def _unreachable(address: str, said: str) -> RetrievalError:
    for mark, meaning, help in _HANDSHAKES:
        if mark.lower() in said.lower():
            return _unanswered("CERTIFICATE", f"no trust in the service at {address}: {meaning}", help)
    help = "start it with `memory-service serve`, or name another with --service"
    if "Socket closed" in said:
        help = (
            "it closed the connection at once, as one does that requires TLS (EDGE_CLIENT_TLS=1) or this device's"
            f" certificate; otherwise {help}"
        )
    return _unanswered("UNREACHABLE", f"no service at {address} ({said})", help)


def _details(call: Any) -> tuple[str, str, float | None]:
    """`status_details` of the google.rpc.Status in a call's trailing metadata; empty without one."""
    value = dict(call.trailing_metadata() or ()).get(DETAILS_KEY, b"")
    try:
        return status_details(status_pb2.Status.FromString(value))
    except DecodeError:  # its sender is broken, the status code still counts
        return "", "", None


def status_details(status: status_pb2.Status) -> tuple[str, str, float | None]:
    """(reason, help, seconds to wait before a retry) of a google.rpc.Status; empty or None where it has none."""
    reason, help, retry_after_s = "", "", None
    info, links = error_details_pb2.ErrorInfo(), error_details_pb2.Help()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(links):
            help = "; ".join(" ".join(filter(None, (link.description, link.url))) for link in links.links)
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, help, retry_after_s
