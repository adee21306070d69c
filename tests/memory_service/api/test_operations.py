"""What operators see and set: health, metrics, quotas, the audit log, request ids."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from memory_service.access.keys import changing
from memory_service.errors import StoreUnavailable
from protos.memory.v1 import ingestion_pb2, knowledge_bases_pb2, models_pb2
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, reason_of, refusal, running


def status(client: Client, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(client.channel).Check(request, timeout=60).status)


def metric(port: int, line: str) -> float:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    found = [row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(line)]
    return float(found[0]) if found else 0.0


def eventually(check: Any) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_health_and_metrics_follow_the_store(tmp_path: Path) -> None:
    settings = {"metrics_listen": "127.0.0.1:0", "health_interval_s": 0.05}
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", **settings) as (client, server):
        port, store = server.metrics_port, server.store
        assert store is not None
        answered = 'memory_service_calls_total{code="OK",method="/memory.v1.Retrieval/Retrieve"}'
        stored, before = 'memory_service_documents_total{outcome="stored"}', metric(port, answered)
        documents = metric(port, stored)
        client.ingest("kb", document("a", "A."), document("b", "B."))
        client.retrieve("kb", vector_of("A.")[None])
        assert metric(port, answered) == before + 1
        assert metric(port, stored) == documents + 2
        assert metric(port, 'memory_service_knowledge_bases{state="ready"}') >= 1
        assert status(client) == status(client, "memory.v1.Ingestion") == 1

        def broken() -> None:
            raise StoreUnavailable("the cable is cut")

        store.ping = broken  # type: ignore[method-assign]
        eventually(lambda: status(client) == 2)
        assert status(client, "memory.v1.Retrieval") == 2
        assert status(client, "memory.v1.Models") == 1
        assert metric(port, "memory_service_store_up") == 0
        del store.ping  # type: ignore[method-assign]
        eventually(lambda: status(client) == 1)
        assert metric(port, "memory_service_disk_free_bytes") > 0


@pytest.mark.parametrize("engine", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
def test_health_follows_the_folder_of_an_embedded_store(tmp_path: Path, engine: str) -> None:
    folder, away = tmp_path / "s", tmp_path / "away"
    with running(tmp_path, HashEncoder(), store=f"{engine}://{folder}", health_interval_s=0.05) as (
        client,
        _,
    ):
        assert status(client) == 1
        folder.rename(away)  # as when its disk is no longer mounted
        eventually(lambda: status(client) == 2)
        shutil.copytree(away, folder)  # another one in its place
        time.sleep(0.2)
        assert status(client) == 2
        shutil.rmtree(folder)
        away.rename(folder)
        eventually(lambda: status(client) == 1)


def test_tenants_have_quotas_that_change_while_the_service_runs(tmp_path: Path) -> None:
    keys, audit = tmp_path / "keys.json", tmp_path / "audit.log"
    small, large = new_key(keys, {"*": "admin"}, "small"), new_key(keys, {"*": "admin"}, "large")
    settings = {"keys": keys, "quota_references": 3, "audit_log": audit, "ingest_batch_references": 1}
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", **settings) as (nobody, _):
        client, other = with_key(nobody.channel, small), with_key(nobody.channel, large)
        answers = client.ingest("kb", *[document(f"d{n}", f"Text {n}.") for n in range(5)])[1:]
        assert [a.WhichOneof("message") for a in answers] == ["acknowledged"] * 3 + ["failed"] * 2
        assert (reason_of(answers[3].failed), answers[3].failed.status.code) == ("QUOTA_EXCEEDED", 8)
        assert "quota of 3" in answers[3].failed.status.message
        assert other.ingest("kb", document("d", "Mine."))[1].HasField("acknowledged")
        (replaced,) = client.ingest("kb", document("d0", "Text other than before."))[1:]
        assert replaced.acknowledged.outcome == ingestion_pb2.INGEST_OUTCOME_REPLACED  # which needs no room
        assert client.ingest("kb", document("d0", "Text 0."))[1].HasField("acknowledged")
        longer = client.ingest("kb", document("d0", "A sentence of some words. " * 60))[1]
        assert reason_of(longer.failed) == "QUOTA_EXCEEDED"
        # The same documents again are no new ones.
        again = client.ingest("kb", *[document(f"d{n}", f"Text {n}.") for n in range(3)])[1:]
        assert all(answer.HasField("acknowledged") for answer in again)
        with changing(keys) as file:
            file.with_quota("small", 4, 0, 0).write(keys)
        assert client.ingest("kb", document("d3", "Text 3."))[1].HasField("acknowledged")
        with changing(keys) as file:
            file.with_quota("small", 4, 0, 2.0).write(keys)
        request = models_pb2.DescribeRequest()
        with pytest.raises(grpc.RpcError) as caught:
            [client.models.Describe(request, timeout=60) for _ in range(100)]
        refused = refusal(caught.value)
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_EXCEEDED")
        assert refused.details[error_details_pb2.RetryInfo].retry_delay.ToTimedelta().total_seconds() <= 0.5
        for _ in range(10):
            other.models.Describe(request, timeout=60)
        drop = knowledge_bases_pb2.DeleteKnowledgeBaseRequest(name="kb")
        other.bases.DeleteKnowledgeBase(drop, timeout=60, metadata=(("x-request-id", "by-me-1"),))
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["Ingest"] * 7 + ["DeleteKnowledgeBase"]
    assert lines[0]["documents"] == {"stored": 3, "failed": 2}
    assert (lines[0]["tenant"], lines[0]["key"]) == ("small", small.split("_")[1])
    assert (lines[-1]["request_id"], lines[-1]["knowledge_base"], lines[-1]["code"]) == (
        "by-me-1",
        "kb",
        "OK",
    )
    assert small.split("_", 2)[2] not in audit.read_text()
    assert audit.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("switched_on", [True, False])
def test_reflection_can_be_switched_off(tmp_path: Path, switched_on: bool) -> None:
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", reflection=switched_on) as (
        client,
        _,
    ):
        ask = reflection_pb2_grpc.ServerReflectionStub(client.channel).ServerReflectionInfo
        call = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60)
        code = grpc.StatusCode.OK
        try:
            assert list(call)
        except grpc.RpcError as error:
            code = error.code()
    assert code == (grpc.StatusCode.OK if switched_on else grpc.StatusCode.UNIMPLEMENTED)
