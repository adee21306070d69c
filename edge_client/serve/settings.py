"""Settings of `edge-client serve`: environment EDGE_CLIENT_SERVE_*, overridden by the command's options."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from edge_client.settings import CheckedSettings


class ServeSettings(CheckedSettings):
    """Where to listen and what to permit. How memories are recalled is in EdgeSettings.

    host, port: port 0 takes a free one. api_key: required by every call under /v1; see `Access` for what holds without
    one. tls: with a certificate that the server makes. allowed_hosts: names beside this machine's names and addresses
    under which the server may be reached. allowed_origins: other sites whose pages may call it, e.g.
    http://127.0.0.1:5173; none by default. waiting: answers that may wait while EdgeSettings' `parallel` are computed;
    one more is refused.
    """

    wanted: ClassVar[dict[str, str]] = {"allowed_origins": "origins, such as http://127.0.0.1:5173"}
    model_config = SettingsConfigDict(env_prefix="EDGE_CLIENT_SERVE_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    api_key: SecretStr | None = Field(default=None, min_length=1)
    tls: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/*]+$")], ...] = ()
    waiting: int = Field(default=16, ge=0, le=4096)
