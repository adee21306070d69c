"""Settings of `edge-client serve`: environment EDGE_CLIENT_SERVE_*, overridden by the command's options."""

from __future__ import annotations

import ipaddress

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from edge_client.settings import CheckedSettings
from memory_model.errors import InvalidInput


class ServeSettings(CheckedSettings):
    """Where to listen and what to permit. How memories are recalled is in EdgeSettings.

    host, port: port 0 takes a free one. api_key: required by every call under /v1 and by /metrics; needed where
    `host` is not this machine's own. allowed_hosts: names beside this machine's own under which the server may be
    reached. allowed_origins: other sites whose pages may call it, e.g. http://127.0.0.1:5173; none by default.

    waiting: answers that may wait while EdgeSettings' `parallel` are computed; one more is refused.
    body_limit_bytes: of a request; upload_limit_bytes: of a document; body_timeout_s: until either has arrived.
    upload_api_key: for writing into the service, where the device's own key only reads; uploads: whether at all.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_CLIENT_SERVE_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    api_key: SecretStr | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    waiting: int = Field(default=16, ge=0, le=4096)
    body_limit_bytes: int = Field(default=1 << 20, ge=1024)
    upload_limit_bytes: int = Field(default=4 << 20, ge=1024)
    body_timeout_s: float = Field(default=60.0, gt=0)
    uploads: bool = True
    upload_api_key: SecretStr | None = None

    @field_validator("allowed_origins")
    @classmethod
    def _no_star(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if "*" in origin or "://" not in origin or origin.endswith("/"):
                raise ValueError(
                    f"{origin!r} is no origin: name scheme, host and port, as http://127.0.0.1:5173"
                )
        return origins

    def check(self) -> None:
        """Refuse to open the device to a network without a key; raises InvalidInput."""
        if self.api_key is not None and not self.api_key.get_secret_value().strip():
            raise InvalidInput("the server's API key is empty: leave it out or give one")
        if self.api_key is None and not is_own(self.host):
            raise InvalidInput(
                f"{self.host} can be reached from other machines, so whoever calls must show a key: set "
                "EDGE_CLIENT_SERVE_API_KEY, or listen on 127.0.0.1"
            )


def is_own(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
