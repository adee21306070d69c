"""The one place that makes gRPC channels: addresses, TLS, API key, keepalive, limits, retries. Knows no message.

ChannelSettings --open_channel--> grpc.Channel         every call adds `metadata` and a timeout
gRPC's errors   --named_errors--> RetrievalError       status, google.rpc details and failed handshakes
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from pydantic import SecretStr

from edge_client.errors import RetrievalError
from memory3.errors import CorruptFile, InvalidInput, MissingFile

KEEPALIVE_TIME_MS = 30_000
"""Between two pings on a silent connection; the service permits one every 10 s (`Limits.ping_interval_ms`)."""
KEEPALIVE_TIMEOUT_MS = 10_000
RECEIVE_LIMIT_BYTES = 64 << 20
FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS = 200, 5_000
CONNECT_TIMEOUT_MS = 2_000
"""Of an attempt to connect: three round trips with TLS, on a slow link or from a busy device."""
IDEMPOTENT = (("memory.v1.Retrieval", "Retrieve"), ("memory.v1.Models", "Describe"))
"""Calls that gRPC may repeat by itself. Streams are resumed by `edge_client.wire.pull`, from where they stopped."""

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ChannelSettings:
    """Where the service is and how to speak to it. Checked when made; raises InvalidInput.

    address: host:port, unix:/path or dns:///name:port; all addresses of a name share the calls (round robin).
    tls: encrypt, with the system's certificate authorities. ca: PEM file of the authorities instead of them.
    certificate, key: PEM files with which the device proves itself (mTLS). Any of these files implies TLS.
    server_name: the name the service's certificate is for, where it is not the address.
    api_key: sent with every call as `authorization: Bearer …`. Shown by no repr and no message of ours.
    insecure: permits an API key without TLS to another machine, where anyone on the way can read it.
    attempts: of an idempotent call while the service cannot be reached, all within its deadline.
    """

    address: str
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    api_key: SecretStr | None = None
    insecure: bool = False
    attempts: int = 3

    def __post_init__(self) -> None:
        """Refuse what contradicts itself or would give the key away."""
        if not self.address.strip():
            raise InvalidInput("the service's address is empty: name it as host:port")
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("mTLS needs both a certificate and its key: give both files or neither")
        if self.server_name and not self.encrypted:
            raise InvalidInput("server_name is checked against a TLS certificate: set tls as well")
        if not 1 <= self.attempts <= 5:
            raise InvalidInput(f"attempts must be 1 to 5, not {self.attempts}")
        if self.api_key is None:
            return
        secret = self.api_key.get_secret_value()
        if not secret or not secret.isascii() or not secret.isprintable() or secret != secret.strip():
            raise InvalidInput("the API key must be printable ASCII without spaces around it, and not empty")
        if not self.encrypted and not self.insecure and not is_loopback(self.address):
            raise InvalidInput(
                f"an API key would travel to {self.address} in plain text: switch TLS on (EDGE_CLIENT_TLS=1), or"
                " permit it on a network that you trust (EDGE_CLIENT_INSECURE=1)"
            )

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls or self.ca is not None or self.certificate is not None

    @property
    def metadata(self) -> Metadata:
        """What every call carries."""
        if self.api_key is None:
            return ()
        return (("authorization", f"Bearer {self.api_key.get_secret_value()}"),)

    @property
    def target(self) -> str:
        """The address as gRPC resolves it."""
        return self.address if self.address.startswith(("unix:", "dns:")) else f"dns:///{self.address}"


def is_loopback(address: str) -> bool:
    """Whether what is sent to the address stays on this machine."""
    if address.startswith("unix:"):
        return True
    authority = address.removeprefix("dns:").rpartition("/")[2]
    host = authority.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def channel_options(settings: ChannelSettings) -> list[tuple[str, Any]]:
    """Options for gRPC."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),
        ("grpc.max_send_message_length", -1),  # the service says what it takes (Limits.request_bytes)
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),  # an idle connection must outlive the NATs on its way
        ("grpc.http2.max_pings_without_data", 0),
        # gRPC keeps a diary of every channel, and of many that are closed: tens of kilobytes each that nobody reads.
        ("grpc.enable_channelz", 0),
        ("grpc.max_channel_trace_event_memory_per_node", 0),
        ("grpc.initial_reconnect_backoff_ms", FIRST_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),  # by its name, but it bounds the attempt
        ("grpc.max_reconnect_backoff_ms", LONGEST_BACKOFF_MS),
        ("grpc.service_config", _service_config(settings.attempts)),
        ("grpc.service_config_disable_resolution", 1),  # no TXT look-ups, and nobody else's settings
    ]
    if is_loopback(settings.address):
        options.append(("grpc.enable_http_proxy", 0))
    if settings.server_name:
        options.append(("grpc.ssl_target_name_override", settings.server_name))
    return options


def open_channel(settings: ChannelSettings) -> grpc.Channel:
    """A channel for threads. Opening does not connect; raises MissingFile, CorruptFile for the PEM files."""
    options = channel_options(settings)
    if settings.encrypted:
        return grpc.secure_channel(settings.target, _credentials(settings), options=options)
    return grpc.insecure_channel(settings.target, options=options)


def _service_config(attempts: int) -> str:
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if attempts > 1:
        policy = {
            "maxAttempts": attempts,
            "initialBackoff": "0.05s",
            "maxBackoff": "0.5s",
            "backoffMultiplier": 2,
            # CANCELLED, when the device did not cancel: the call met the end of a connection that the service closed.
            "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
        }
        names = [{"service": service, "method": method} for service, method in IDEMPOTENT]
        config["methodConfig"] = [{"name": names, "retryPolicy": policy}]
    return json.dumps(config)


def _credentials(settings: ChannelSettings) -> grpc.ChannelCredentials:
    """TLS credentials of files that were looked at first: gRPC itself only says that a handshake failed."""
    authorities = _read(settings.ca) if settings.ca else _system_authorities()
    certificate = _read(settings.certificate) if settings.certificate else None
    key = _read(settings.key) if settings.key else None
    if settings.ca:
        try:
            ssl.create_default_context(cafile=str(settings.ca))
        except ssl.SSLError as error:
            raise CorruptFile(f"{settings.ca} holds no PEM certificate of an authority: {error}") from error
    if settings.certificate and settings.key:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(settings.certificate, settings.key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise CorruptFile(
                f"{settings.certificate} and {settings.key} are no PEM certificate and its key without a passphrase:"
                f" {error}"
            ) from error
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def _system_authorities() -> bytes | None:
    """The system's authorities, which an administrator may have added to; None: those that gRPC carries."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file and Path(file).is_file() else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFile(f"TLS file {path} cannot be read: {error.strerror}") from error


DETAILS_KEY = "grpc-status-details-bin"
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
"""The reason of an error to which the service gives none itself."""
UNAVAILABLE = frozenset({_Code.CANCELLED, _Code.DEADLINE_EXCEEDED, _Code.RESOURCE_EXHAUSTED, _Code.UNAVAILABLE})
"""The service gave no answer: it is left alone for a while, and a pack may answer instead."""
_HELP = {
    "KNOWLEDGE_BASE_NOT_FOUND": "name one of `memory-service kb list` with --kb, or ingest into it first",
    "KNOWLEDGE_BASE_DAMAGED": "its operator restores a backup (`memory-service kb show` has the problem)",
    **dict.fromkeys(
        (f"{what}_MISMATCH" for what in ("MODEL", "CODEC", "FORMAT", "EMBEDDER")),
        "fetch the bundle that this service offers with `edge-client pull`",
    ),
    "BUNDLE_NOT_CONFIGURED": "copy a bundle made with `memory-model export`",
    "OVERLOADED": "ask again a little later",
    _Code.UNAUTHENTICATED: "give the API key with EDGE_CLIENT_API_KEY",
    _Code.PERMISSION_DENIED: "ask the service's operator to permit it for this API key",
    _Code.UNIMPLEMENTED: "the service is older than this client: update it",
    _Code.INTERNAL: "the service's log has the cause",
}
"""What to do, by the service's reason or else by status."""
_NAME_CA = "name the authority's file (EDGE_CLIENT_CA)"
# What BoringSSL and gRPC say (a pattern) in the details of UNAVAILABLE when a handshake fails, and what it means.
_HANDSHAKES = (
    ("certificate has expired", "its certificate has expired", "have it renewed, or set this device's clock"),
    ("certificate is not yet valid", "its certificate is not valid yet", "set this device's clock"),
    (
        "Hostname Verification",
        "its certificate is for another name",
        "use a name that the certificate has, or say it (EDGE_CLIENT_SERVER_NAME)",
    ),
    ("unable to get local issuer|self.signed certificate", "its certificate's issuer is unknown here", _NAME_CA),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not accepted", _NAME_CA),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS there", "leave TLS off, or name its TLS port"),
    ("CERTIFICATE_REQUIRED", "it asks for this device's certificate", "set EDGE_CLIENT_CERTIFICATE, EDGE_CLIENT_KEY"),
    ("handshake failed", "the TLS handshake failed", "see `edge-client doctor`"),
)


@contextmanager
def named_errors(address: str, timeout_s: float) -> Iterator[None]:
    """Raises what gRPC raises in the block as a RetrievalError. address, timeout_s: of the calls in the block."""
    try:
        yield
    except grpc.RpcError as error:
        raise call_error(error, address, timeout_s) from error
    except ValueError as error:  # what gRPC raises for a channel that is closed
        raise _unanswered("UNREACHABLE", f"the connection to {address} was closed here") from error


def call_error(error: grpc.RpcError, address: str, timeout_s: float) -> RetrievalError:
    """The error of a call to `address` that had `timeout_s` seconds."""
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
        reason=reason or BY_STATUS.get(code, "SERVICE_FAILED"),
        unavailable=code in UNAVAILABLE,
        help=help or _HELP.get(reason) or _HELP.get(code, ""),
        retry_after_s=retry_after_s,
    )


def _unanswered(reason: str, message: str, help: str = "") -> RetrievalError:
    return RetrievalError(message, reason=reason, unavailable=True, help=help)


def _unreachable(address: str, said: str) -> RetrievalError:
    for mark, meaning, help in _HANDSHAKES:
        if re.search(mark, said, re.IGNORECASE):
            return _unanswered("CERTIFICATE", f"no trust in the service at {address}: {meaning}", help)
    help = "start it with `memory-service serve`, or name another with --service"
    if "Socket closed" in said:
        help = (
            "it closed the connection at once, as one does that requires TLS (EDGE_CLIENT_TLS=1) or this device's"
            f" certificate; otherwise {help}"
        )
    return _unanswered("UNREACHABLE", f"no service at {address} ({said})", help)


def _details(call: Any) -> tuple[str, str, float | None]:
    """(reason, help, seconds to wait before a retry) of the google.rpc.Status in a call's trailing metadata."""
    reason, help, retry_after_s = "", "", None
    info, links, retry = error_details_pb2.ErrorInfo(), error_details_pb2.Help(), error_details_pb2.RetryInfo()
    with suppress(DecodeError):  # its sender is broken, the status code still counts
        value = dict(call.trailing_metadata() or ()).get(DETAILS_KEY, b"")
        for detail in status_pb2.Status.FromString(value).details:
            if detail.Unpack(info):
                reason = info.reason
            elif detail.Unpack(links):
                help = "; ".join(" ".join(filter(None, (link.description, link.url))) for link in links.links)
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, help, retry_after_s
