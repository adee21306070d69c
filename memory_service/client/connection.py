"""The way of the commands to a service: TLS and API key from the environment, channels, and errors for people."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from memory3.errors import InvalidInput, Memory3Error, MissingFile
from memory3.printable import printable
from memory_service.access.tls import is_loopback
from memory_service.settings import what_is_wrong

Address = Annotated[str, typer.Option("--address", envvar="MEMORY_SERVICE_ADDRESS", help="host:port of the service")]
Stub = TypeVar("Stub")
_RETRY_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "2s",
    "backoffMultiplier": 4,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": _RETRY_POLICY}]})),
]


class RemoteError(Memory3Error):
    """The service refused a call or cannot be reached.

    reason: stable name of the error, such as MODEL_MISMATCH, or empty. retry_after_s: the service's RetryInfo, or 0.
    retryable: the same call may succeed a little later.
    """

    def __init__(self, message: str, code: grpc.StatusCode, reason: str = "", retry_after_s: float = 0) -> None:
        super().__init__(message)
        self.code, self.reason, self.retry_after_s = code, reason, retry_after_s
        self.retryable = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


def remote_error(error: grpc.RpcError, address: str) -> RemoteError:
    """The error of a call, with reason and RetryInfo from its google.rpc.Status."""
    code, message = error.code(), error.details() or ""
    reason, retry_after_s = details_of(rpc_status.from_call(error) or status_pb2.Status())
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) and not reason:
        message = f"no memory service answers at {address} ({message}): start it with `memory-service serve`"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        message += "; commands send the one in MEMORY_SERVICE_CLIENT_API_KEY"
    return RemoteError(message, code, reason, retry_after_s)


def details_of(status: status_pb2.Status) -> tuple[str, float]:
    """Reason (ErrorInfo) and delay in seconds (RetryInfo) of a status; empty and 0 where it has none."""
    reason, retry_after_s = "", 0.0
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return reason, retry_after_s


@contextlib.contextmanager
def connected(address: str) -> Iterator[grpc.Channel]:
    """A channel to the service, as the environment says; errors of calls are raised as RemoteError."""
    with Connection().channel(address) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            raise remote_error(error, address) from error


class Connection(BaseSettings):
    """MEMORY_SERVICE_CLIENT_… variables of the commands that ask a running service."""

    model_config = SettingsConfigDict(env_prefix="MEMORY_SERVICE_CLIENT_", extra="ignore", str_strip_whitespace=True)

    api_key: SecretStr | None = Field(None, description="API key, `m3_…`")
    tls: bool = Field(False, description="use TLS with the system's certificate authorities")
    ca: Path | None = Field(None, description="PEM file of other certificate authorities; implies tls")
    certificate: Path | None = Field(None, description="PEM file of the client certificate (mTLS)")
    key: Path | None = Field(None, description="PEM file of its key")
    server_name: str = Field("", description="name in the service's certificate, if not the address")
    insecure: bool = Field(False, description="allow sending the API key to another machine without TLS")

    def __init__(self, **values: Any) -> None:
        """From the environment; raises InvalidInput."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidInput(what_is_wrong(error, "MEMORY_SERVICE_CLIENT_")) from None

    def channel(self, address: str) -> grpc.Channel:
        """A channel; calls that find no service are tried again for a while. Raises InvalidInput, MissingFile."""
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("mTLS needs both MEMORY_SERVICE_CLIENT_CERTIFICATE and MEMORY_SERVICE_CLIENT_KEY")
        encrypted = self.tls or self.ca is not None or self.certificate is not None
        if self.api_key is not None and not (encrypted or self.insecure or is_loopback(address)):
            raise InvalidInput(
                f"the API key would travel to {address} in plain text: switch TLS on (MEMORY_SERVICE_CLIENT_TLS=1) or"
                " permit it on a network that you trust (MEMORY_SERVICE_CLIENT_INSECURE=1)"
            )

        name = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        if encrypted:
            files = [_read(self.ca), _read(self.key), _read(self.certificate)]
            credentials = grpc.ssl_channel_credentials(*files)
            channel = grpc.secure_channel(address, credentials, options=[*_OPTIONS, *name])
        else:
            channel = grpc.insecure_channel(address, options=_OPTIONS)
        if self.api_key is None:
            return channel
        return grpc.intercept_channel(channel, KeyInterceptor(self.api_key.get_secret_value()))


class KeyInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the API key to every call of a channel, of whatever kind."""

    def __init__(self, secret: str) -> None:
        self._header = ("authorization", f"Bearer {secret}")

    def _called(self, proceed: Any, details: Any, request: Any) -> Any:
        return proceed(details._replace(metadata=[*(details.metadata or ()), self._header]), request)

    intercept_unary_unary = _called
    intercept_unary_stream = _called
    intercept_stream_unary = _called
    intercept_stream_stream = _called


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise MissingFile(f"TLS file {path} cannot be read: {error.strerror}") from error


# For people


@contextlib.contextmanager
def asking(stub: Callable[[grpc.Channel], Stub], address: str) -> Iterator[Stub]:
    """A stub of the service."""
    with connected(address) as channel:
        yield stub(channel)


def plain(text: str) -> str:
    """Text in which rich sees no markup and a terminal no command."""
    return printable(text).replace("[", "\\[")
