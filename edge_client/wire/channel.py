"""Maps gRPC's errors to RetrievalError, with the reason and a remedy (`named_errors`).

Channels, their settings and error details are in `memory3.channel`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from edge_client.errors import RetrievalError
from memory3.channel import call_details, unreachable_cause

_Code = grpc.StatusCode
BY_STATUS = {
    **dict.fromkeys((_Code.CANCELLED, _Code.UNAVAILABLE), "UNREACHABLE"),
    **dict.fromkeys((_Code.UNKNOWN, _Code.INTERNAL, _Code.DATA_LOSS), "SERVICE_FAILED"),
    **dict.fromkeys((_Code.PERMISSION_DENIED, _Code.UNAUTHENTICATED), "ACCESS_REFUSED"),
    **dict.fromkeys((_Code.FAILED_PRECONDITION, _Code.UNIMPLEMENTED), "INCOMPATIBLE"),
    **dict.fromkeys(
        (_Code.INVALID_ARGUMENT, _Code.NOT_FOUND, _Code.ALREADY_EXISTS, _Code.ABORTED, _Code.OUT_OF_RANGE),
        "INVALID_REQUEST",
    ),
    _Code.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    _Code.RESOURCE_EXHAUSTED: "OVERLOADED",
}
"""The reason of an error for which the service reports none."""
UNAVAILABLE = frozenset({_Code.CANCELLED, _Code.DEADLINE_EXCEEDED, _Code.RESOURCE_EXHAUSTED, _Code.UNAVAILABLE})
"""Status codes without an answer: the client backs off, and a memory pack may be used instead."""
_HELP = {
    "KNOWLEDGE_BASE_NOT_FOUND": "name one of `memory-service kb list` with --kb, or ingest into it first",
    "KNOWLEDGE_BASE_DAMAGED": "its operator restores a backup (`memory-service kb show` has the problem)",
    **dict.fromkeys(
        (f"{what}_MISMATCH" for what in ("MODEL", "CODEC", "FORMAT", "EMBEDDER")),
        "fetch the bundle that this service offers with `edge-client pull`",
    ),
    "BUNDLE_NOT_CONFIGURED": "copy a bundle made with `memory-model export`",
    "OVERLOADED": "try again a little later",
    _Code.UNAUTHENTICATED: "give the API key with EDGE_CLIENT_API_KEY",
    _Code.PERMISSION_DENIED: "ask the service's operator to permit it for this API key",
    _Code.UNIMPLEMENTED: "the service is older than this client: update it",
    _Code.INTERNAL: "the service's log has the cause",
}
"""Remedy by the service's reason, else by status."""
_NAME_CA = "name the authority's file (EDGE_CLIENT_CA)"
# Pattern in the details of UNAVAILABLE (from BoringSSL and gRPC) for a failed handshake, meaning, remedy.
_HANDSHAKES = (
    ("certificate has expired", "its certificate has expired", "have it renewed, or set this device's clock"),
    ("certificate is not yet valid", "its certificate is not valid yet", "set this device's clock"),
    (
        "Hostname Verification",
        "its certificate is for another name",
        "use a name that the certificate has, or set it (EDGE_CLIENT_SERVER_NAME)",
    ),
    ("unable to get local issuer|self.signed certificate", "its certificate's issuer is unknown here", _NAME_CA),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not accepted", _NAME_CA),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS there", "leave TLS off, or name its TLS port"),
    ("CERTIFICATE_REQUIRED", "it requires this device's certificate", "set EDGE_CLIENT_CERTIFICATE, EDGE_CLIENT_KEY"),
    ("handshake failed", "the TLS handshake failed", "see `edge-client doctor`"),
)


@contextmanager
def named_errors(address: str, timeout_s: float) -> Iterator[None]:
    """Raise gRPC errors of the block as RetrievalError. address, timeout_s: of the calls in the block."""
    try:
        yield
    except grpc.RpcError as error:
        raise call_error(error, address, timeout_s) from error
    except ValueError as error:  # raised by gRPC for a closed channel
        raise _unanswered("UNREACHABLE", f"the connection to {address} was closed here") from error


def call_error(error: grpc.RpcError, address: str, timeout_s: float) -> RetrievalError:
    """The error of a call to `address` with a timeout of `timeout_s` seconds."""
    call: Any = error
    # A call raises itself, so it would hold the frames it was raised in, and these hold it: everything that the recall
    # had in hand, the embedder's session too, would wait for the next run of Python's collector.
    error.__traceback__ = None
    code, message = call.code(), call.details() or ""
    reason, retry_after_s = call_details(call)
    if code is _Code.DEADLINE_EXCEEDED and not reason:
        return _unanswered(BY_STATUS[code], f"the service at {address} did not answer within {timeout_s:.3g} s")
    if code is _Code.CANCELLED:
        return _unanswered(BY_STATUS[code], f"the call to {address} was cancelled")
    if code is _Code.UNAVAILABLE and not reason:
        return _unreachable(address, message)
    return RetrievalError(
        f"the service at {address} refused ({reason or code.name}): {message}",
        reason=reason or BY_STATUS.get(code, "SERVICE_FAILED"),
        unavailable=code in UNAVAILABLE,
        help=_HELP.get(reason) or _HELP.get(code, ""),
        retry_after_s=retry_after_s,
    )


def _unanswered(reason: str, message: str, help: str = "") -> RetrievalError:
    return RetrievalError(message, reason=reason, unavailable=True, help=help)


def _unreachable(address: str, details: str) -> RetrievalError:
    for mark, meaning, help in _HANDSHAKES:
        if re.search(mark, details, re.IGNORECASE):
            return _unanswered("CERTIFICATE", f"no trust in the service at {address}: {meaning}", help)
    help = "start it with `memory-service serve`, or name another with --service"
    if "Socket closed" in details:
        help = (
            "it closed the connection at once: it may require TLS (EDGE_CLIENT_TLS=1) or this device's"
            f" certificate; otherwise {help}"
        )
    return _unanswered("UNREACHABLE", f"no service at {address} ({unreachable_cause(details)})", help)
