"""What is wrong with a service or a store, as a list that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memory_service.remote import channel_to, remote_error
from memory_service.stores import KnowledgeBase, Store, StoreOptions, open_store
from memory_service.stores.address import parse_address
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import knowledge_bases_pb2_grpc, models_pb2, models_pb2_grpc


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    sound: bool
    what: str
    found: str


def check_store(url: str, options: StoreOptions | None = None, *, deep: bool = False) -> list[Finding]:
    """Opens the store (no service may have it open) and checks every knowledge base; `deep` reads all payloads."""
    store = open_store(url, options)
    try:
        findings = [Finding(True, str(parse_address(url)), "opened")]
        for base in store.knowledge_bases():
            findings.append(_check_base(store, base, deep))
        return findings
    finally:
        store.close()


def _check_base(store: Store, base: KnowledgeBase, deep: bool) -> Finding:
    what = f"knowledge base {base.name}"
    if base.problem:
        return Finding(False, what, base.problem)
    if problems := store.check(base, deep=deep):
        return Finding(False, what, "; ".join(problems[:20]))
    counts = store.statistics(base)
    depth = "every checksum compared" if deep else "counts and ids agree"
    return Finding(True, what, f"{counts.documents} documents, {counts.references} memories: {depth}")


async def check_service(address: str) -> list[Finding]:
    """Asks a running service for its health, its model and the state of its knowledge bases. Raises RemoteError."""
    async with channel_to(address) as channel:
        try:
            health = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=10
            )
            status = health_pb2.HealthCheckResponse.ServingStatus.Name(health.status)
            findings = [Finding(health.status == health_pb2.HealthCheckResponse.SERVING, address, status)]
            model = await models_pb2_grpc.ModelsStub(channel).Describe(
                models_pb2.DescribeRequest(), timeout=10
            )
            ids = (
                f"model {model.model_id[:12]}, codec {model.codec_id[:12]}, embedder {model.embedder_id[:12]}"
            )
            findings.append(Finding(True, "model", f"{ids}, vectors of {model.dimension}"))
            stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
            bases = (
                await stub.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=10)
            ).knowledge_bases
            for base in bases:
                findings.append(await _ask_about(stub, base))
        except grpc.aio.AioRpcError as error:
            raise remote_error(error, address) from error
        return findings


async def _ask_about(stub: knowledge_bases_pb2_grpc.KnowledgeBasesStub, base: kb_pb.KnowledgeBase) -> Finding:
    what = f"knowledge base {base.name}"
    if base.state != kb_pb.KNOWLEDGE_BASE_STATE_READY:
        return Finding(False, what, base.problem)
    counts = await stub.GetStatistics(kb_pb.GetStatisticsRequest(name=base.name), timeout=60)
    return Finding(True, what, f"{counts.document_count} documents, {counts.reference_count} memories")
