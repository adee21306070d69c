"""The client's settings: defaults, environment variables EDGE_CLIENT_*, keyword arguments; the last wins."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from edge_client.checked_settings import CheckedSettings
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.wire.channel import ChannelSettings
from memory_model.bundle import DEFAULT_FOLDER

DEFAULT_ADDRESS = "127.0.0.1:7430"
DEFAULT_KNOWLEDGE_BASE = "default"
ADDRESS_PATTERN = r"^(unix:.+|dns:.+|(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5})$"
"""host:port, unix:/path or a dns: name, as gRPC takes them; a URL or a name without a port is refused."""


class EdgeSettings(CheckedSettings):
    """How a device decodes and asks. Every field is an environment variable, e.g. EDGE_CLIENT_SERVICE.

    bundle: folder of the edge bundle. service: host:port of the retrieval service. knowledge_base: whose
    memories are read, several as atlas,firm. threads: of the decoder; embedder_threads: of the embedder.
    provider: what the decoder runs on. minimum_score: memories of lower cosine similarity are not read.

    tls, ca, certificate, key, server_name, api_key, insecure: see ChannelSettings, which `channel` makes of them.

    recall: overlap, exact or off. lead_tokens: generated tokens before a chunk's end at which the next chunk's
    memories are asked for. deadline_s: longest wait for a prompt's memories; chunk_deadline_s: for those of a
    generated chunk. memory_cache_mb: memories kept on the device, codes and decoded together. pack: folder of a
    memory pack (`edge-client pull --kb`), searched here when the service does not answer. offline: the service is
    never asked.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_CLIENT_", extra="forbid", frozen=True)
    wanted: ClassVar[dict[str, str]] = {
        "service": "host:port, such as 127.0.0.1:7430 (or unix:/path, or dns:///name:port)"
    }

    bundle: Path = DEFAULT_FOLDER
    service: str = Field(default=DEFAULT_ADDRESS, pattern=ADDRESS_PATTERN)
    knowledge_base: str = Field(default=DEFAULT_KNOWLEDGE_BASE, min_length=1)
    threads: int = Field(default=1, ge=1, le=256)
    embedder_threads: int = Field(default=1, ge=1, le=256)
    provider: str = Field(default="auto", min_length=1)
    minimum_score: float | None = Field(default=None, ge=-1, le=1)

    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    api_key: SecretStr | None = None
    insecure: bool = False

    recall: RecallMode = RecallMode.overlap
    lead_tokens: int = Field(default=16, ge=0, le=4096)
    deadline_s: float = Field(default=2.0, gt=0, le=600)
    chunk_deadline_s: float = Field(default=2.0, gt=0, le=600)
    memory_cache_mb: float = Field(default=64.0, ge=0, le=1 << 20)
    pack: Path | None = None
    offline: bool = False

    @property
    def channel(self) -> ChannelSettings:
        """How to reach the service; raises InvalidInput for a combination that would give the API key away."""
        return ChannelSettings(
            self.service, tls=self.tls, ca=self.ca, certificate=self.certificate, key=self.key,
            server_name=self.server_name, api_key=self.api_key, insecure=self.insecure,
        )  # fmt: skip

    @property
    def recall_policy(self) -> RecallPolicy:
        """When sessions ask and how long they wait."""
        return RecallPolicy(self.recall, self.lead_tokens, self.deadline_s, self.chunk_deadline_s)
