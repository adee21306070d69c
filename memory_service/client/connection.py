"""How the commands reach a service: TLS and API key from the environment, so that no key stands in a command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from memory_model.errors import InvalidInput, MissingFile
from memory_service.access.tls import is_loopback
from memory_service.settings import what_is_wrong

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", -1),
]


class Connection(BaseSettings):
    """MEMORY_SERVICE_CLIENT_… variables of the commands that ask a running service."""

    model_config = SettingsConfigDict(env_prefix="MEMORY_SERVICE_CLIENT_", extra="ignore")

    api_key: SecretStr | None = Field(default=None, description="API key, `m3_…`")
    tls: bool = Field(default=False, description="encrypt, with the system's certificate authorities")
    ca: Path | None = Field(
        default=None, description="PEM file of the authorities instead of them; implies tls"
    )
    certificate: Path | None = Field(
        default=None, description="PEM file with which the command proves itself (mTLS)"
    )
    key: Path | None = Field(default=None, description="PEM file of its key")
    server_name: str = Field(
        default="", description="name the service's certificate is for, where it is not the address"
    )
    insecure: bool = Field(
        default=False, description="permit the API key to travel to another machine without TLS"
    )

    def __init__(self, **values: Any) -> None:
        """From the environment; raises InvalidInput."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidInput(what_is_wrong(error, "MEMORY_SERVICE_CLIENT_")) from None

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls or self.ca is not None or self.certificate is not None

    def channel(self, address: str) -> grpc.aio.Channel:
        """An asynchronous channel; raises InvalidInput, MissingFile."""
        self._check(address)
        interceptors = _with_key(self.api_key.get_secret_value()) if self.api_key is not None else None
        if not self.encrypted:
            return grpc.aio.insecure_channel(address, options=self._options(), interceptors=interceptors)
        return grpc.aio.secure_channel(
            address, self._credentials(), options=self._options(), interceptors=interceptors
        )

    def blocking_channel(self, address: str) -> grpc.Channel:
        """A channel without an event loop, for the workers of a cluster; raises InvalidInput, MissingFile."""
        self._check(address)
        if self.encrypted:
            channel = grpc.secure_channel(address, self._credentials(), options=self._options())
        else:
            channel = grpc.insecure_channel(address, options=self._options())
        if self.api_key is None:
            return channel
        return grpc.intercept_channel(channel, KeyInterceptor(self.api_key.get_secret_value()))

    def _check(self, address: str) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput(
                "mTLS needs both MEMORY_SERVICE_CLIENT_CERTIFICATE and MEMORY_SERVICE_CLIENT_KEY"
            )
        if self.api_key is not None and not (self.encrypted or self.insecure or is_loopback(address)):
            raise InvalidInput(
                f"the API key would travel to {address} in plain text: switch TLS on (MEMORY_SERVICE_CLIENT_TLS=1) or"
                " permit it on a network that you trust (MEMORY_SERVICE_CLIENT_INSECURE=1)"
            )

    def _options(self) -> list[tuple[str, Any]]:
        name = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return [*_OPTIONS, *name]

    def _credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.certificate))


class KeyInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the API key to every call of a blocking channel, of whatever kind."""

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


def _with_key(secret: str) -> list[grpc.aio.ClientInterceptor]:
    """Interceptors, one for each kind of call, that add the key."""

    async def add(_: Any, proceed: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        metadata.add("authorization", f"Bearer {secret}")
        return await proceed(details._replace(metadata=metadata), request)

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    interceptors = []
    for kind in kinds:
        base = getattr(grpc.aio, f"{''.join(part.title() for part in kind.split('_'))}ClientInterceptor")
        interceptors.append(type(f"Key{kind}", (base,), {f"intercept_{kind}": add})())
    return interceptors
