"""gRPC channels to a memory service: address, TLS, API key, keepalive, limits, retries; and the details of errors.

ChannelSettings --open_channel--> grpc.Channel     every call adds `metadata` and a timeout
grpc.RpcError   --call_details--> ErrorDetails     reason and delay of its google.rpc.Status
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from pydantic import SecretStr

from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.failover import FailoverChannel

KEEPALIVE_TIME_MS = 30_000
"""Between two pings on a silent connection; the service permits one every 10 s (`Limits.ping_interval_ms`)."""
KEEPALIVE_TIMEOUT_MS = 10_000
RECEIVE_LIMIT_BYTES = 64 << 20
FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS = 200, 5_000
CONNECT_TIMEOUT_MS = 2_000
"""Of an attempt to connect: three round trips with TLS, on a slow link or from a busy device."""
PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]\d{4}|\d{1,4})"
"""A port as people write it: a regular expression, for gRPC takes a larger one modulo 65,536."""
DETAILS_KEY = "grpc-status-details-bin"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Retries:
    """Calls that gRPC repeats by itself while the service cannot be reached, all within their deadline.

    methods: (service, method) of the calls, ("", "") for every one. statuses: after which a call is repeated.
    """

    methods: tuple[tuple[str, str], ...]
    first_pause_s: float = 0.05
    longest_pause_s: float = 0.5
    multiplier: int = 2
    # CANCELLED, when the caller did not cancel: the call met the end of a connection that the service closed.
    statuses: tuple[str, ...] = ("UNAVAILABLE", "CANCELLED")


IDEMPOTENT = Retries((("memory.v1.Retrieval", "Retrieve"), ("memory.v1.Models", "Describe")))


@dataclass(frozen=True)
class ChannelSettings:
    """Where the service is and how to speak to it. Checked when made; raises InvalidInput.

    address: host:port, unix:/path or dns:///name:port; all addresses of a name share the calls (round robin). Several,
    separated by commas, are services of the same content: calls go to the first that is connected (`failover`).
    tls: encrypt, with the system's certificate authorities. ca: PEM file of the authorities instead of them.
    certificate, key: PEM files of the client's certificate (mTLS). Any of these files implies TLS.
    server_name: the name the service's certificate is for, where it is not the address.
    api_key: sent with every call as `authorization: Bearer …`. Shown by no repr and no message of ours.
    insecure: permits an API key without TLS to another machine, where anyone on the way can read it.
    attempts: of a call that is repeated. variables: prefix of the environment variables that messages name.
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
    variables: str = "EDGE_CLIENT_"

    def __post_init__(self) -> None:
        """Refuse what contradicts itself or would give the key away."""
        if not all(address.strip() for address in self.addresses):
            raise InvalidInput("the service's address is empty: name it as host:port")
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput(
                "mTLS needs both a certificate and its key: set both or neither"
                f" ({self.variables}CERTIFICATE, {self.variables}KEY)"
            )
        if self.server_name and not self.encrypted:
            raise InvalidInput("server_name is checked against a TLS certificate: set tls as well")
        if not 1 <= self.attempts <= 5:
            raise InvalidInput(f"attempts must be 1 to 5, not {self.attempts}")
        if self.api_key is None:
            return
        secret = self.api_key.get_secret_value()
        if not secret or not secret.isascii() or not secret.isprintable() or secret != secret.strip():
            raise InvalidInput("the API key must be printable ASCII without spaces around it, and not empty")
        if not self.encrypted and not self.insecure and not all(map(is_loopback, self.addresses)):
            raise InvalidInput(
                f"an API key would be sent to {self.address} in plain text: switch TLS on ({self.variables}TLS=1), or"
                f" permit it on a network that you trust ({self.variables}INSECURE=1)"
            )

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls or self.ca is not None or self.certificate is not None

    @property
    def metadata(self) -> Metadata:
        """The metadata of every call."""
        if self.api_key is None:
            return ()
        return (("authorization", f"Bearer {self.api_key.get_secret_value()}"),)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of every service, the preferred one first."""
        return tuple(self.address.split(","))

    @property
    def target(self) -> str:
        """The address as gRPC resolves it, of one service."""
        return self.address if self.address.startswith(("unix:", "dns:")) else f"dns:///{self.address}"


def is_loopback(address: str) -> bool:
    """Whether what is sent to the address, or listened to at it, stays on this machine."""
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


def channel_options(settings: ChannelSettings, retries: Retries = IDEMPOTENT) -> list[tuple[str, Any]]:
    """Options for gRPC."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),
        ("grpc.max_send_message_length", -1),  # the service reports its limit (Limits.request_bytes)
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),  # an idle connection must outlive the NATs on its way
        ("grpc.http2.max_pings_without_data", 0),
        # gRPC traces every channel, and many that are closed: tens of kilobytes each that are never read.
        ("grpc.enable_channelz", 0),
        ("grpc.max_channel_trace_event_memory_per_node", 0),
        ("grpc.initial_reconnect_backoff_ms", FIRST_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),  # by its name, but it bounds the attempt
        ("grpc.max_reconnect_backoff_ms", LONGEST_BACKOFF_MS),
        ("grpc.service_config", _service_config(settings.attempts, retries)),
        ("grpc.service_config_disable_resolution", 1),  # no TXT look-ups, and no settings of others
    ]
    if is_loopback(settings.address):
        options.append(("grpc.enable_http_proxy", 0))
    if settings.server_name:
        options.append(("grpc.ssl_target_name_override", settings.server_name))
    return options


def open_channel(settings: ChannelSettings, retries: Retries = IDEMPOTENT) -> grpc.Channel:
    """A channel for threads; raises MissingFile, CorruptFile for the PEM files.

    Opening does not connect, unless there are several services.
    """
    if len(settings.addresses) > 1:
        each = [open_channel(replace(settings, address=address), retries) for address in settings.addresses]
        return FailoverChannel(each)
    options = channel_options(settings, retries)
    if settings.encrypted:
        return grpc.secure_channel(settings.target, _credentials(settings), options=options)
    return grpc.insecure_channel(settings.target, options=options)


def _service_config(attempts: int, retries: Retries) -> str:
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if attempts > 1:
        policy = {
            "maxAttempts": attempts,
            "initialBackoff": f"{retries.first_pause_s}s",
            "maxBackoff": f"{retries.longest_pause_s}s",
            "backoffMultiplier": retries.multiplier,
            "retryableStatusCodes": retries.statuses,
        }
        names = [{"service": service, "method": method} if service else {} for service, method in retries.methods]
        config["methodConfig"] = [{"name": names, "retryPolicy": policy}]
    return json.dumps(config)


def _credentials(settings: ChannelSettings) -> grpc.ChannelCredentials:
    """TLS credentials of files that are checked first: gRPC itself only reports a failed handshake."""
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
    """The system's authorities, which an administrator may have added to; None: those packaged with gRPC."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file and Path(file).is_file() else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFile(f"TLS file {path} cannot be read: {error.strerror}") from error


class ErrorDetails(NamedTuple):
    """What a service adds to a status: ErrorInfo's reason, RetryInfo's delay; empty and None without."""

    reason: str = ""
    retry_after_s: float | None = None


def details_of(status: status_pb2.Status) -> ErrorDetails:
    """The details of a google.rpc.Status."""
    details = ErrorDetails()
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info):
            details = details._replace(reason=info.reason)
        elif detail.Unpack(retry):
            details = details._replace(retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9)
    return details


def call_details(call: Any) -> ErrorDetails:
    """The details of an error of a call, from its trailing metadata."""
    with suppress(DecodeError):  # its sender is broken, the status code still counts
        value = dict(call.trailing_metadata() or ()).get(DETAILS_KEY, b"")
        return details_of(status_pb2.Status.FromString(value))
    return ErrorDetails()


_CAUSES = (
    ("Connection refused|No such file", "nothing listens there"),
    ("Socket closed|Connection reset", "it closes the connection"),
    ("errors resolving|address lookup failed|Domain name not found", "its name is not known"),
    ("timed out|timeout|Deadline Exceeded", "it does not answer in time"),
    ("unreachable|No route to host", "the network has no way to it"),
)
"""Pattern in the text of gRPC for a service that cannot be reached, and what it means."""


def unreachable_cause(details: str) -> str:
    """Why a service cannot be reached, for people: gRPC's details without its own state and the addresses it tried."""
    last = details.rpartition("last error: ")[2]
    known = (meaning for pattern, meaning in _CAUSES if re.search(pattern, last, re.IGNORECASE))
    return next(known, re.sub(r"^[A-Z_]+: ((ipv4|ipv6|unix):\S+: )?", "", last))
