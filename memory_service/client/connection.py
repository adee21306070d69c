"""The way of the commands to a service: TLS and API key from the environment, channels, and errors for people."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from memory3.channel import ChannelSettings, Metadata, Retries, call_details, open_channel, unreachable_cause
from memory3.errors import InvalidInput, Memory3Error
from memory3.printable import printable
from memory_service.settings import what_is_wrong

Address = Annotated[str, typer.Option("--address", envvar="MEMORY_SERVICE_ADDRESS", help="host:port of the service")]
Stub = TypeVar("Stub")
_RETRIES = Retries((("", ""),), first_pause_s=0.1, longest_pause_s=2, multiplier=4, statuses=("UNAVAILABLE",))
_ATTEMPTS = 4


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
    reason, retry_after_s = call_details(error)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) and not reason:
        cause = unreachable_cause(message)
        message = f"no memory service answers at {address} ({cause}): start it with `memory-service serve`"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        message += "; commands send the one in MEMORY_SERVICE_CLIENT_API_KEY"
    return RemoteError(message, code, reason, retry_after_s or 0)


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
        settings = ChannelSettings(
            address,
            tls=self.tls,
            ca=self.ca,
            certificate=self.certificate,
            key=self.key,
            server_name=self.server_name,
            api_key=self.api_key,
            insecure=self.insecure,
            attempts=_ATTEMPTS,
            variables="MEMORY_SERVICE_CLIENT_",
        )
        channel = open_channel(settings, _RETRIES)
        return grpc.intercept_channel(channel, KeyInterceptor(settings.metadata)) if settings.metadata else channel


class KeyInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the API key to every call of a channel, of whatever kind."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def _called(self, proceed: Any, details: Any, request: Any) -> Any:
        return proceed(details._replace(metadata=[*(details.metadata or ()), *self._metadata]), request)

    intercept_unary_unary = _called
    intercept_unary_stream = _called
    intercept_stream_unary = _called
    intercept_stream_stream = _called


# For people


@contextlib.contextmanager
def asking(stub: Callable[[grpc.Channel], Stub], address: str) -> Iterator[Stub]:
    """A stub of the service."""
    with connected(address) as channel:
        yield stub(channel)


def plain(text: str) -> str:
    """Text in which rich sees no markup and a terminal no command."""
    return printable(text).replace("[", "\\[")
