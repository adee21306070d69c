"""The client's settings: defaults, environment variables EDGE_CLIENT_*, keyword arguments; the last wins."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from memory_model.bundle import DEFAULT_FOLDER

DEFAULT_ADDRESS = "127.0.0.1:7430"
DEFAULT_KNOWLEDGE_BASE = "default"
ADDRESS_PATTERN = r"^(unix:.+|dns:.+|(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5})$"
"""host:port, unix:/path or a dns: name, as gRPC takes them; a URL or a name without a port is refused."""


class EdgeSettings(BaseSettings):
    """How a device decodes and asks. Every field is an environment variable, e.g. EDGE_CLIENT_SERVICE.

    bundle: folder of the edge bundle. service: host:port of the retrieval service. knowledge_base: whose
    memories are read. threads: of the decoder; embedder_threads: of the embedder. deadline_s: longest wait
    for one retrieval. minimum_score: memories of lower cosine similarity are not read.
    """

    model_config = SettingsConfigDict(env_prefix="EDGE_CLIENT_", extra="forbid", frozen=True)

    bundle: Path = DEFAULT_FOLDER
    service: str = Field(default=DEFAULT_ADDRESS, pattern=ADDRESS_PATTERN)
    knowledge_base: str = Field(default=DEFAULT_KNOWLEDGE_BASE, min_length=1)
    threads: int = Field(default=1, ge=1, le=256)
    embedder_threads: int = Field(default=1, ge=1, le=256)
    deadline_s: float = Field(default=2.0, gt=0, le=600)
    minimum_score: float | None = Field(default=None, ge=-1, le=1)
