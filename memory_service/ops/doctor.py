"""What is wrong, or soon will be, with a service, a store, or the files that settings name; each with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memory_model.errors import Memory3Error
from memory_service.access.keys import KeyFile
from memory_service.access.tls import Security
from memory_service.api.health import RETRIEVAL
from memory_service.client.connection import RemoteError, connected
from memory_service.settings import Settings
from memory_service.stores import KnowledgeBase, Store, StoreOptions, open_store
from memory_service.stores.address import parse_address
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import knowledge_bases_pb2_grpc, models_pb2, models_pb2_grpc

SOON = timedelta(days=30)
"""What ends within this time is reported."""
_REMEDY_BASE = "restore it from a backup under a new name, or `memory-service kb delete` it and ingest again"
_REMEDY_IDENTITY = "serve it with the model it was written with, or ingest its documents anew"
_REMEDY_FOLDER = "if a service has it open: stop the service, or use `memory-service doctor --address …`"
_REMEDY_SERVER = "are server, address and password (MEMORY_SERVICE_STORE_PASSWORD) right? then as it says"
_NEW_KEY = "`memory-service keys create` makes a new one; give it to its users, then revoke the old one"
_NEW_CERTIFICATE = "replace the files in place: the next handshake uses the new ones"
_NOT_SERVING = {
    "": "look at its log: it is stopping, or its store does not answer",
    RETRIEVAL: "look for `store_state` in its log: the store does not answer",
}
_NOT_ANSWERED = {
    grpc.StatusCode.UNAUTHENTICATED: "set MEMORY_SERVICE_CLIENT_API_KEY to a key with the scope `read`",
    grpc.StatusCode.UNAVAILABLE: "start it, or name its --address; set MEMORY_SERVICE_CLIENT_TLS if it has TLS",
}
_TIMEOUT_S = 10


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. remedy: what to do; where all is well, what will have to be done soon."""

    sound: bool
    what: str
    found: str
    remedy: str = ""

    @property
    def state(self) -> Literal["ok", "look", "bad"]:
        """For people."""
        return ("look" if self.remedy else "ok") if self.sound else "bad"


def check_files(settings: Settings) -> list[Finding]:
    """Whether `serve` would start with these settings, and what in their files ends soon."""
    try:
        Security.of(settings)
    except Memory3Error as error:
        return [Finding(False, "keys and TLS", str(error), "name files that fit together")]
    return list(_check_ends(settings))


def _check_ends(settings: Settings) -> Iterator[Finding]:
    """Until when keys and certificates are good."""
    now = datetime.now(timezone.utc)
    ends: list[tuple[str, datetime, datetime, str]] = []
    if settings.keys is not None:
        file = KeyFile.read(settings.keys)
        active = [key for key in file.keys if key.state(now) == "active"]
        found = f"{len(active)} of {len(file.keys)} keys active, {len(file.certificates)} certificates"
        sound = bool(active or file.certificates)
        yield Finding(sound, f"keys {settings.keys}", found, "" if sound else f"nobody gets in: {_NEW_KEY}")
        ends += [
            (f"key {key.id} {key.name}", key.created_at, key.expires_at, _NEW_KEY) for key in active if key.expires_at
        ]  # fmt: skip
    for path in filter(None, (settings.tls_certificate, settings.tls_client_ca)):
        for one in x509.load_pem_x509_certificates(path.read_bytes()):
            what = f"{path}: {one.subject.rfc4514_string()}"
            ends.append((what, one.not_valid_before_utc, one.not_valid_after_utc, _NEW_CERTIFICATE))
    for what, begin, end, remedy in ends:
        found = f"good from {begin:%Y-%m-%d} to {end:%Y-%m-%d %H:%M}"
        yield Finding(begin <= now < end, what, found, remedy if begin > now or end < now + SOON else "")


# A store that no service has open


def check_store(url: str, options: StoreOptions | None = None, *, deep: bool = False) -> list[Finding]:
    """Opens the store and checks every knowledge base; `deep` reads all payloads.

    No service may have it open. A store that is not there is not made.
    """
    address, options = parse_address(url), options or StoreOptions()
    what = f"store {address}"
    if not address.host and not address.path.exists():
        return [Finding(False, what, "there is none", "`memory-service serve` makes one; is the path right?")]
    try:
        store = open_store(url, options)
    except Memory3Error as error:
        return [Finding(False, what, str(error), _REMEDY_SERVER if address.host else _REMEDY_FOLDER)]
    try:
        findings = [Finding(True, what, "opened")]
        return findings + [_check_base(store, base, deep) for base in store.knowledge_bases()]
    finally:
        store.close()


def _check_base(store: Store, base: KnowledgeBase, deep: bool) -> Finding:
    what = f"knowledge base {base.name}"
    try:
        if problem := base.problem or "; ".join(store.check(base, deep=deep)[:20]):
            return Finding(False, what, problem, _REMEDY_BASE)
        counts = store.statistics(base)
    except Memory3Error as error:
        return Finding(False, what, str(error), _REMEDY_BASE)
    depth = "every checksum compared" if deep else "counts and ids agree"
    return Finding(True, what, f"{counts.documents} documents, {counts.references} memories: {depth}")


# A running service


def check_service(address: str) -> list[Finding]:
    """Asks a service for its health, its model and the state of its knowledge bases."""
    findings: list[Finding] = []
    try:
        with connected(address) as channel:
            for service, remedy in _NOT_SERVING.items():
                request = health_pb2.HealthCheckRequest(service=service)
                health = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_S)
                status = health_pb2.HealthCheckResponse.ServingStatus.Name(health.status)
                serves = status == "SERVING"
                findings.append(
                    Finding(serves, service or f"service {address}", status, "" if serves else remedy)
                )
            describe = models_pb2.DescribeRequest()
            model = models_pb2_grpc.ModelsStub(channel).Describe(describe, timeout=_TIMEOUT_S)
            found = f"model {model.model_id[:12]}, vectors of {model.dimension}"
            findings.append(Finding(True, "model", found))
            stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
            listed = stub.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=_TIMEOUT_S)
            findings += [_ask_about(stub, base) for base in listed.knowledge_bases]
    except RemoteError as error:
        remedy = _NOT_ANSWERED.get(error.code, "look at the service's log")
        findings.append(Finding(False, f"service {address}", str(error), remedy))
    return findings


def _ask_about(stub: knowledge_bases_pb2_grpc.KnowledgeBasesStub, base: kb_pb.KnowledgeBase) -> Finding:
    what = f"knowledge base {base.name}"
    if base.state != kb_pb.KNOWLEDGE_BASE_STATE_READY:
        mismatched = base.state == kb_pb.KNOWLEDGE_BASE_STATE_MISMATCHED
        return Finding(False, what, base.problem, _REMEDY_IDENTITY if mismatched else _REMEDY_BASE)
    counts = stub.GetStatistics(kb_pb.GetStatisticsRequest(name=base.name), timeout=60)
    return Finding(True, what, f"{counts.document_count} documents, {counts.reference_count} memories")
