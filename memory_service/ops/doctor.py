"""What is wrong with a running service or a store, as a list that a person can act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memory_model.bundle import Bundle
from memory_model.errors import IdentityMismatch, Memory3Error
from memory_service.api.health import INGESTION, MODELS, RETRIEVAL
from memory_service.client.connection import RemoteError, connected
from memory_service.stores import KnowledgeBase, Store, StoreOptions, open_store
from memory_service.stores.address import StoreAddress, parse_address
from memory_service.stores.identity import require_readable
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import knowledge_bases_pb2_grpc, models_pb2, models_pb2_grpc

IDS = ("model_id", "codec_id", "memory_format_id", "embedder_id")
_REMEDY_BASE = "restore it from a backup under a new name, or `memory-service kb delete` it and ingest again"
_REMEDY_IDENTITY = "name the bundle it was written with, or ingest its documents anew"
_REMEDY_FOLDER = (
    "if a service has it open: stop the service, or ask that one: `memory-service doctor --address …`"
)
_REMEDY_SERVER = (
    "is the server up, are address and password (MEMORY_SERVICE_STORE_PASSWORD) right? then as it says"
)
_NOT_SERVING = {
    "": "look at its log: it is loading, stopping, or its store does not answer",
    RETRIEVAL: "look for `store_state` in its log: the store does not answer",
    INGESTION: "free space on the store's disk, or lower disk_stop_bytes; writing goes on by itself",
    MODELS: "wait: the model is being loaded",
}
_NOT_ANSWERED = {
    grpc.StatusCode.UNAUTHENTICATED: "set MEMORY_SERVICE_CLIENT_API_KEY to a key with the scope `read`",
    grpc.StatusCode.UNAVAILABLE: "start it, or name its --address; set MEMORY_SERVICE_CLIENT_TLS if it has TLS",
}
_CALL_TIMEOUT_S = 10


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. remedy: what to do; where all is well, what will have to be done soon."""

    sound: bool
    what: str
    found: str
    remedy: str = ""

    @property
    def state(self) -> Literal["ok", "look", "bad"]:
        """As a person is told."""
        if not self.sound:
            return "bad"
        return "look" if self.remedy else "ok"


def bundle_ids(bundle: Path) -> tuple[Finding, Mapping[str, str]]:
    """What a bundle is for, and its ids by their names; none where it cannot be read."""
    try:
        manifest = Bundle.open(bundle).manifest
    except Memory3Error as error:
        return Finding(False, f"bundle {bundle}", str(error), "`memory-model export` makes a new one"), {}
    ids = {name: str(getattr(manifest, name)) for name in IDS}
    return Finding(True, f"bundle {bundle}", _short(ids)), ids


def _short(ids: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name.removesuffix('_id').replace('_', ' ')} {value[:12]}" for name, value in ids.items()
    )


# A store that no service has open


def check_store(
    url: str, options: StoreOptions | None = None, *, deep: bool = False, ids: Mapping[str, str] | None = None
) -> list[Finding]:
    """Opens the store and checks every knowledge base, against the `ids` of a bundle too; `deep` reads all payloads.

    No service may have it open. A store that is not there is not made, and one of an older version is left as it is.
    """
    address, options = parse_address(url), options or StoreOptions()
    what = f"store {address}"
    if not address.host and not address.path.exists():
        return [Finding(False, what, "there is none", "`memory-service serve` makes one; is the path right?")]
    try:
        if lacking := _migrations_to_come(address, options):
            remedy = (
                "back up, then `memory-service migrate` or `serve` applies them; nothing else was looked at"
            )
            return [Finding(True, what, f"of an older version, lacks {', '.join(lacking)}", remedy)]
        store = open_store(url, options)
    except Memory3Error as error:
        return [Finding(False, what, str(error), _REMEDY_SERVER if address.host else _REMEDY_FOLDER)]
    try:
        findings = [Finding(True, what, "opened, no migration is missing")]
        return findings + [_check_base(store, base, deep, ids or {}) for base in store.knowledge_bases()]
    finally:
        store.close()


def _migrations_to_come(address: StoreAddress, options: StoreOptions) -> list[str]:
    """Names of the migrations that opening the store would apply; files (`file://`) have none."""
    if address.engine == "file":
        return []
    from memory_service.stores.clickhouse.engine import (  # the engine takes a second to import
        Engine,
        engine_errors,
    )
    from memory_service.stores.clickhouse.migrations import missing

    engine = Engine(address, options)
    try:
        with engine_errors("looking for migrations"):
            tables = engine.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")
            if ("migrations",) not in [tuple(row) for row in tables]:
                return []  # an empty one
            rows = engine.rows("SELECT DISTINCT dimension FROM migrations WHERE dimension > 0")
            return [migration.name for migration, _ in missing(engine, {int(row[0]) for row in rows})]
    finally:
        engine.close()


def _check_base(store: Store, base: KnowledgeBase, deep: bool, ids: Mapping[str, str]) -> Finding:
    what = f"knowledge base {base.name}"
    try:
        if base.problem:
            return Finding(False, what, base.problem, _REMEDY_BASE)
        if problems := store.check(base, deep=deep):
            return Finding(False, what, "; ".join(problems[:20]), _REMEDY_BASE)
        if ids:
            require_readable(base.identity, **ids)
        counts = store.statistics(base)
    except IdentityMismatch as error:
        return Finding(False, what, str(error), _REMEDY_IDENTITY)
    except Memory3Error as error:
        return Finding(False, what, str(error), _REMEDY_BASE)
    depth = "every checksum compared" if deep else "counts and ids agree"
    return Finding(True, what, f"{counts.documents} documents, {counts.references} memories: {depth}")


# A running service


def check_service(address: str, ids: Mapping[str, str] | None = None) -> list[Finding]:
    """Asks a service for its health, its model and the state of its knowledge bases; `ids`: of a bundle to compare."""
    findings: list[Finding] = []
    try:
        with connected(address) as channel:
            for service in ("", RETRIEVAL, INGESTION, MODELS):
                findings.append(_ask_health(channel, address, service))
            findings.append(_ask_model(channel, ids or {}))
            stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
            request = kb_pb.ListKnowledgeBasesRequest()
            for base in stub.ListKnowledgeBases(request, timeout=_CALL_TIMEOUT_S).knowledge_bases:
                findings.append(_ask_about(stub, base))
    except RemoteError as error:
        remedy = _NOT_ANSWERED.get(error.code, "look at the service's log")
        findings.append(Finding(False, f"service {address}", str(error), remedy))
    return findings


def _ask_health(channel: grpc.Channel, address: str, service: str) -> Finding:
    request = health_pb2.HealthCheckRequest(service=service)
    health = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_CALL_TIMEOUT_S)
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(health.status)
    serves = health.status == health_pb2.HealthCheckResponse.SERVING
    return Finding(serves, service or f"service {address}", status, "" if serves else _NOT_SERVING[service])


def _ask_model(channel: grpc.Channel, ids: Mapping[str, str]) -> Finding:
    stub = models_pb2_grpc.ModelsStub(channel)
    model = stub.Describe(models_pb2.DescribeRequest(), timeout=_CALL_TIMEOUT_S)
    runs = {name: str(getattr(model, name)) for name in IDS}
    found = f"{_short(runs)}, vectors of {model.dimension}"
    if other := [name for name in ids if ids[name] != runs[name]]:
        remedy = "start it with that bundle, or give devices the one that it runs (`edge-client pull`)"
        return Finding(False, "model", f"{found}: not the bundle's {', '.join(other)}", remedy)
    return Finding(True, "model", found)


def _ask_about(stub: knowledge_bases_pb2_grpc.KnowledgeBasesStub, base: kb_pb.KnowledgeBase) -> Finding:
    what = f"knowledge base {base.name}"
    if base.state == kb_pb.KNOWLEDGE_BASE_STATE_MISMATCHED:
        return Finding(False, what, base.problem, _REMEDY_IDENTITY)
    if base.state != kb_pb.KNOWLEDGE_BASE_STATE_READY:
        return Finding(False, what, base.problem, _REMEDY_BASE)
    counts = stub.GetStatistics(kb_pb.GetStatisticsRequest(name=base.name), timeout=60)
    return Finding(True, what, f"{counts.document_count} documents, {counts.reference_count} memories")
