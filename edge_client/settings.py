"""The client's settings: defaults, environment variables EDGE_CLIENT_*, keyword arguments; the last wins."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from edge_client.decoder.providers import AUTO, provider_names
from edge_client.local.store import LocalStore
from edge_client.recall.policy import RecallMode, RecallPolicy
from memory3.channel import PORT, ChannelSettings
from memory3.errors import InvalidInput
from memory3.files.bundle import DEFAULT_FOLDER
from memory3.home import users_folder

DEFAULT_ADDRESS = "127.0.0.1:7430"
DEFAULT_KNOWLEDGE_BASE = "default"
_ADDRESS = rf"(unix:[^,]+|dns:[^,]+|(\[[0-9a-fA-F:.]+\]|[^\s:/,]+):{PORT})"
ADDRESS_PATTERN = rf"^{_ADDRESS}(,{_ADDRESS})*$"
"""host:port, unix:/path or a dns: name, as gRPC takes them; a URL or a name without a port is refused."""
_LONGEST_SHOWN = 60


def user_folder() -> Path:
    """Folder of the user's own knowledge bases: ~/.local/share/memory3-edge/local, or as the system has it."""
    return users_folder("data", "memory3-edge") / "local"


class CheckedSettings(BaseSettings):
    """Settings whose faults are one InvalidInput. wanted: what one must be whose type does not say it, by name."""

    wanted: ClassVar[dict[str, str]] = {}

    def __init__(self, **values: Any) -> None:
        """Keyword arguments before the environment before the defaults; raises InvalidInput."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            messages = dict.fromkeys(self._message(dict(problem)) for problem in error.errors())
            raise InvalidInput("; ".join(messages)) from None
        except SettingsError as error:  # a list that is no JSON
            name = str(error).partition('"')[2].partition('"')[0]  # pydantic-settings says it nowhere else
            variable = f"{self.model_config.get('env_prefix', '')}{name.upper()}"
            raise InvalidInput(f'{variable} must be a JSON list, such as ["first", "second"]') from error

    @classmethod
    def _message(cls, problem: dict[str, Any]) -> str:
        name = str(problem["loc"][0]) if problem["loc"] else ""
        prefix = cls.model_config.get("env_prefix", "")
        if problem["type"] == "extra_forbidden":
            return f"there is no setting {name.lower()}; there are: {', '.join(cls.model_fields)}"
        setting = f"setting {name} ({prefix}{name.upper()})"
        text = re.sub(r"^\w+ should ", "", str(problem["msg"]))  # "Input should be …"
        wanted = f"be {cls.wanted[name]}" if name in cls.wanted else text
        given = problem["input"]
        if isinstance(given, SecretStr) or "key" in name:
            return f"{setting} must {wanted}"
        return f"{setting} must {wanted}, not {repr(given)[:_LONGEST_SHOWN]}"


class EdgeSettings(CheckedSettings):
    """How a device decodes and recalls. Every field is an environment variable, e.g. EDGE_CLIENT_SERVICE.

    bundle: folder of the edge bundle. service: host:port of the retrieval service, or several of the same content, see
    ChannelSettings. knowledge_base: whose memories are read, several as atlas,firm.

    local: folder of this device's own knowledge bases (`edge-client remember`), all of which are read, and of memory
    packs (`edge-client pull --kb`), read where the service does not answer; all are to be of one model. Default: the
    user's, see `user_folder`, in which every model has its own.

    memory: overlap, exact or off (see RecallMode). lead_tokens: generated tokens before a chunk's end at which the
    next chunk's memories are requested. minimum_score: memories that score lower by vector and words are not read;
    default: the bundle's, -1 reads everything.
    deadline_s: longest wait for a chunk's memories; where embedding a question alone takes more than half of it, that
    is added. send_text: where embedding all queries of a prompt takes longer than that half, send the service their
    texts, which it embeds; otherwise the last ones alone are recalled (EMBEDDER_SLOW).
    memory_cache_mb: payloads kept on the device. offline: never call the service, whatever is named.

    provider: what runs the decoder, a name of `edge_client.decoder.providers`. model: folder of the model that torch
    runs, the one that the bundle was exported from; None: the packaged one. threads: of the decoder, "auto" measures
    which number is fastest; embedder_threads: of the embedder. parallel: conversations whose key-values stay in slots
    at the same time. context: tokens of a conversation; 0: 2,048, or fewer where the model was trained for fewer.
    speculation: on the CPU, run tokens that the memories and the prompt suggest before they are chosen. With int4
    weights long answers may then differ (decision 0060).

    tls, ca, certificate, key, server_name, api_key, insecure: see ChannelSettings, which `channel` makes of them.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_CLIENT_", extra="forbid", frozen=True, str_strip_whitespace=True)
    wanted: ClassVar[dict[str, str]] = {
        "service": "host:port, such as 127.0.0.1:7430 (or unix:/path, or dns:///name:port), or several: first,second",
        "threads": "a whole number from 1 to 256, or auto",
    }

    bundle: Path = DEFAULT_FOLDER
    service: str = Field(default=DEFAULT_ADDRESS, pattern=ADDRESS_PATTERN)
    knowledge_base: str = Field(default=DEFAULT_KNOWLEDGE_BASE, min_length=1)
    local: Path = Field(default_factory=user_folder)

    memory: RecallMode = RecallMode.overlap
    lead_tokens: int = Field(default=16, ge=0, le=4096)
    minimum_score: float | None = Field(default=None, ge=-1, le=1)
    deadline_s: float = Field(default=2.0, gt=0, le=600)
    send_text: bool = False
    memory_cache_mb: float = Field(default=64.0, ge=0, le=1 << 20)
    offline: bool = False

    provider: str = AUTO
    model: Path | None = None
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = "auto"
    embedder_threads: int = Field(default=1, ge=1, le=256)
    parallel: int = Field(default=4, ge=1, le=256)
    context: int = Field(default=0, ge=0)
    speculation: bool = False

    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    api_key: SecretStr | None = None
    insecure: bool = False

    @field_validator("provider")
    @classmethod
    def _known_provider(cls, name: str) -> str:
        if name not in provider_names():
            names = ", ".join(provider_names())
            raise PydanticCustomError("provider", "Input should be one of {names}", {"names": names})
        return name

    @property
    def store(self) -> LocalStore:
        """The knowledge bases of this device: the user's own, or those of the folder that was named."""
        return LocalStore(self.local, by_model="local" not in self.model_fields_set)

    @property
    def channel(self) -> ChannelSettings:
        """How to reach the service; raises InvalidInput for a combination that would give the API key away."""
        return ChannelSettings(self.service, **self.model_dump(include={f.name for f in fields(ChannelSettings)}))

    @property
    def recall_policy(self) -> RecallPolicy:
        """When sessions recall and how long they wait."""
        return RecallPolicy(self.memory, self.lead_tokens, self.deadline_s)


class EdgeOptions(TypedDict, total=False):
    """The keyword arguments of `EdgeModel.open`: fields of EdgeSettings, which says what each means."""

    local: str | Path | None
    knowledge_base: str | None
    memory: RecallMode | Literal["overlap", "exact", "off"] | None
    lead_tokens: int | None
    offline: bool | None
    threads: int | Literal["auto"] | None
    embedder_threads: int | None
    provider: str | None
    model: str | Path | None
    parallel: int | None
    context: int | None
    speculation: bool | None
    minimum_score: float | None
    deadline_s: float | None
    send_text: bool | None
    memory_cache_mb: float | None
    tls: bool | None
    ca: str | Path | None
    certificate: str | Path | None
    key: str | Path | None
    server_name: str | None
    api_key: str | SecretStr | None
    insecure: bool | None
