"""Settings: command line over environment (`MEMORY_SERVICE_…`) over file (TOML) over the defaults below."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from memory3.channel import PORT
from memory3.errors import InvalidInput, MissingFile, shortened
from memory3.home import users_folder
from memory_service.stores.address import StoreOptions

DEFAULT_ADDRESS = "127.0.0.1:7430"
DEFAULT_KNOWLEDGE_BASE = "default"
_PORT_PATTERN = rf"^((\[[0-9a-fA-F:.]+\]|[^\s:/]+):{PORT})?$"
ADDRESS_PATTERN = rf"^(unix:.+|(\[[0-9a-fA-F:.]+\]|[^\s:/]+):{PORT})$"
CONFIG_VARIABLE = "MEMORY_SERVICE_CONFIG"
MAX_QUERIES, MAX_HITS, MAX_HELD_IDS = 256, 1280, 65536
"""Of one request: query vectors, hits of all queries together, ids that the client holds."""
_SECRET = ("password", "key", "store")
"""In names of settings whose values are not repeated; a store's address may hold a password."""


def default_store() -> str:
    """A store among the user's data: ~/.local/share/memory-service, or as the system has it."""
    return f"file://{users_folder('data', 'memory-service').resolve() / 'files'}"


class Settings(BaseSettings):
    """All of the service's settings; the unit is in the name."""

    model_config = SettingsConfigDict(env_prefix="MEMORY_SERVICE_", extra="forbid", allow_inf_nan=False)

    listen: str = Field(DEFAULT_ADDRESS, pattern=ADDRESS_PATTERN, description="host:port (0: a free one) or unix:/path")
    port_file: Path | None = Field(None, description="file to write the port to, once ready")
    store: str = Field(
        default_factory=default_store,
        description="file:///path, chdb:///path, clickhouse://user@host/database or myscale://…;"
        " with TLS clickhouses://…, myscales://…",
    )
    store_password: SecretStr = Field(SecretStr(""), description="password, if not in the store's address")
    store_cluster: str = Field("", description="ClickHouse cluster, for replicated and distributed tables")
    store_timeout_s: float = Field(30.0, gt=0, description="longest wait for the store's server")
    store_max_threads: int = Field(0, ge=0, description="threads of a search; 0: 1 embedded, 4 on a server")
    store_insert_quorum: str = Field("auto", description="replicas that must have an insert; auto: most")
    store_sweep_after_s: float = Field(3600.0, ge=60, description="age at which orphaned rows are removed")
    store_vector_index: str = Field("SCANN", description="MyScale's type of vector index, such as MSTG in its cloud")
    store_search_parameters: str = Field("", description="of MyScale's index in a search, such as alpha=3")
    read_connections: int = Field(2, ge=1, le=64, description="concurrent retrievals; as many more with filters")

    keys: Path | None = Field(None, description="key file; without it, no authentication")
    tls_certificate: Path | None = Field(None, description="PEM file of certificate and chain; enables TLS")
    tls_key: Path | None = Field(None, description="PEM file of the certificate's key, without a passphrase")
    tls_client_ca: Path | None = Field(None, description="PEM file of the authorities of clients (mTLS); needs keys")
    insecure: bool = Field(False, description="allow other machines without keys")

    quota_references: int = Field(0, ge=0, description="largest number of references of a tenant; 0: no limit")
    quota_bytes: int = Field(0, ge=0, description="most bytes of a tenant's memories; 0: no limit")
    quota_requests_per_s: float = Field(0.0, ge=0, description="most calls of a tenant per second; 0: no limit")
    metrics_listen: str = Field("", pattern=_PORT_PATTERN, description="host:port for Prometheus; '': none")
    traces_endpoint: str = Field("", description="OpenTelemetry collector, http://host:4317 (extra `tracing`)")
    backups: str = Field(
        "", description="folder or s3://bucket/prefix with a folder of backups for each knowledge base, for their ages"
    )
    backups_of: str = Field("", description="knowledge bases that are to be there, separated by commas; '': all")
    backups_max_age_h: float = Field(26.0, gt=0, description="age of the newest backup above which an alert fires")
    health_interval_s: float = Field(5.0, gt=0, description="interval between checks of store and disk, and retries")
    warm_up: bool = Field(True, description="use model and store once before reporting ready")

    model: Path | None = Field(None, description="model folder; default: the packaged one of the bundle")
    codec: Path | None = Field(None, description="codec.npz; default: the model folder's")
    bundle: Path | None = Field(None, description="bundle that is served to devices, with the embedder")
    bundle_variants: Path | None = Field(
        None, description="folder of more bundles of the same model, for devices of other precisions"
    )
    embedder: Path | None = Field(None, description="folder of the embedder; default: the bundle's")
    writing_device: str = Field("auto", description="auto (a GPU if there is one), cpu, cuda, cuda:<number>")
    writing_precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="precision of the model that writes memories"
    )

    document_limit_bytes: int = Field(4 << 20, ge=1, description="longest text of a document in UTF-8")
    document_memory_bytes: int = Field(2 << 30, ge=1, description="most bytes of a document's vectors and memories")
    ingest_batch_references: int = Field(64, ge=1, le=4096, description="references stored in one batch")
    cold_wait_s: float = Field(5.0, ge=0, description="longest wait of a retrieval for unwritten memories")
    cold_background: bool = Field(True, description="write late memories unasked; false: only when they are read")
    usage_interval_s: float = Field(60.0, ge=0, description="interval at which counted reads are stored; 0: no counts")
    usage_share: float = Field(1.0, gt=0, le=1, description="share of retrievals whose reads are counted")
    max_ingest_calls: int = Field(64, ge=1, description="concurrent calls of Ingest and Upsert; more get OVERLOADED")
    ingest_memory_bytes: int = Field(256 << 20, ge=1 << 20, description="memory of documents until they are stored")
    ingest_tenant_share: float = Field(0.5, gt=0, le=1, description="largest share of either for one tenant")
    ingest_idle_timeout_s: float = Field(600.0, gt=0, description="longest silence of a stream")
    message_limit_bytes: int = Field(32 << 20, ge=1 << 20, description="largest request")
    max_k: int = Field(100, ge=1, le=1000, description="most memories per query")
    rerank_candidates: int = Field(50, ge=1, le=1000, description="nearest by vector that are reranked by words")
    max_waiting_retrievals: int = Field(256, ge=1, description="waiting retrievals; more get OVERLOADED")
    default_deadline_s: float = Field(30.0, gt=0, description="for requests without a deadline")
    shutdown_grace_s: float = Field(20.0, ge=0, description="time after SIGTERM for calls in flight")
    shutdown_delay_s: float = Field(0.0, ge=0, description="time after SIGTERM that still accepts calls (NOT_SERVING)")
    connection_age_s: float = Field(0.0, ge=0, description="age at which connections are closed; 0: never")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged: debug, info, warning, error"
    )

    @property
    def bundle_folders(self) -> list[Path]:
        """The bundle, then its variants by name: every folder with a manifest in `bundle_variants`."""
        more = sorted(self.bundle_variants.iterdir()) if self.bundle_variants is not None else []
        first = [self.bundle] if self.bundle is not None else []
        return [*first, *(folder for folder in more if (folder / "manifest.json").is_file())]

    def store_options(self) -> StoreOptions:
        """What the store's address does not say."""
        return StoreOptions(
            read_connections=self.read_connections,
            password=self.store_password.get_secret_value(),
            cluster=self.store_cluster,
            timeout_s=self.store_timeout_s,
            max_threads=self.store_max_threads,
            insert_quorum=self.store_insert_quorum,
            sweep_after_s=self.store_sweep_after_s,
            retry_s=self.health_interval_s,
            vector_index=self.store_vector_index,
            search_parameters=self.store_search_parameters,
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Adds the file that MEMORY_SERVICE_CONFIG names, below the environment."""
        path = os.environ.get(CONFIG_VARIABLE)
        file = (TomlConfigSettingsSource(settings_cls, Path(path)),) if path else ()
        return (init_settings, env_settings, *file)


def load_settings(config: Path | None, given: dict[str, Any]) -> Settings:
    """Settings from the command line, the environment and the file; raises InvalidInput, MissingFile."""
    file = str(config or os.environ.get(CONFIG_VARIABLE, ""))
    if file:
        if not Path(file).is_file():
            raise MissingFile(f"the settings file {file} does not exist")
        os.environ[CONFIG_VARIABLE] = file
    try:
        return Settings(**given)
    except ValidationError as error:
        raise InvalidInput(f"wrong settings: {what_is_wrong(error, 'MEMORY_SERVICE_')}") from None
    except ValueError as error:
        raise InvalidInput(f"the settings file {file} is not TOML: {error}") from error


def what_is_wrong(error: ValidationError, prefix: str) -> str:
    """Lists every invalid setting by name and environment variable; values of possible secrets are left out."""

    def message(problem: ErrorDetails) -> str:
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":  # perhaps a password's, misspelt
            return f"there is no setting {name}: `memory-service serve --help` lists them"
        value = "" if any(word in name for word in _SECRET) else f" (got {shortened(repr(problem['input']))})"
        expected = problem["msg"]
        if problem["type"] == "string_pattern_mismatch":  # all of them are addresses
            expected = f"must be host:port, such as {DEFAULT_ADDRESS}"
        return f"{name} ({prefix}{name.upper()}): {expected}{value}"

    return "; ".join(map(message, error.errors()))
