"""What operators see and set: health, metrics, quotas, the log of calls; a damaged knowledge base beside sound ones."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from memory_service.access.keys import changing
from memory_service.api import interceptors
from memory_service.api.interceptors import SERVICES
from memory_service.errors import StoreUnavailable
from memory_service.telemetry.logs import configure_logs
from protos.memory.v1 import knowledge_bases_pb2, models_pb2
from testing.encoders import DIMENSION, PAYLOAD_BYTES, HashEncoder
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.processes import client_of, service
from tests.memory_service.running import Client, document, eventually, metric, outcomes, refused, running, status


def test_health_and_metrics_follow_the_store(tmp_path: Path) -> None:
    settings = {"metrics_listen": "127.0.0.1:0", "health_interval_s": 0.05}
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", **settings) as (client, server):
        port, store = server.metrics_port, server.store
        assert store is not None
        answered = 'memory_service_calls_total{code="OK",method="/memory.v1.Retrieval/Retrieve"}'
        stored, before = 'memory_service_documents_total{outcome="stored"}', metric(port, answered)
        documents = metric(port, stored)
        ready = 'memory_service_knowledge_bases{state="ready"}'
        bases = metric(port, ready)
        client.ingest("kb", document("a", "A."), document("b", "B."))
        client.hits("kb", "A.")
        assert metric(port, answered) == before + 1
        assert metric(port, stored) == documents + 2
        assert metric(port, ready) == bases + 1
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
    with running(tmp_path, HashEncoder(), store=f"{engine}://{folder}", health_interval_s=0.05) as (client, _):
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
    keys = tmp_path / "keys.json"
    small, large = new_key(keys, {"*": "admin"}, "small"), new_key(keys, {"*": "admin"}, "large")

    def change(references: int, requests_per_s: float) -> None:
        with changing(keys) as file:
            file.with_quota("small", references, 0, requests_per_s).write(keys)

    settings = {"keys": keys, "quota_references": 3, "ingest_batch_references": 1}
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", **settings) as (nobody, _):
        client, other = with_key(nobody.channel, small), with_key(nobody.channel, large)

        texts = [(f"d{n}", f"Text {n}.") for n in range(5)]
        assert outcomes(client, *texts) == [1, 1, 1, "QUOTA_EXCEEDED", "QUOTA_EXCEEDED"]
        assert other.ingest("kb", document("d", "Mine."))[1].HasField("acknowledged")
        assert outcomes(client, ("d0", "Text other than before.")) == [2], "which needs no room"
        assert outcomes(client, texts[0]) == [2]
        assert outcomes(client, ("d0", "A sentence of some words. " * 60)) == ["QUOTA_EXCEEDED"]
        assert outcomes(client, *texts[:3]) == [3, 3, 3], "the same documents again are no new ones"
        change(4, 0)
        assert outcomes(client, texts[3]) == [1]
        change(4, 2.0)
        describe = models_pb2.DescribeRequest()
        error = refused(lambda: [client.models.Describe(describe, timeout=60) for _ in range(100)])
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_EXCEEDED")
        assert error.details[error_details_pb2.RetryInfo].retry_delay.ToTimedelta().total_seconds() <= 0.5
        for _ in range(10):
            other.models.Describe(describe, timeout=60)


def test_who_writes_administers_or_is_refused_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.json"
    secret, reader = new_key(keys, {"*": "admin"}, "acme"), new_key(keys, {"*": "read"}, "acme")
    configure_logs("info")
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", keys=keys) as (nobody, _):
        client = with_key(nobody.channel, secret)
        client.ingest("kb", document("a", "My diary."), document("b", ""))
        client.hits("kb", "x")  # which is too frequent to be logged
        refused(lambda: with_key(nobody.channel, reader).drop("kb"))
        refused(nobody.names)
        drop = knowledge_bases_pb2.DeleteKnowledgeBaseRequest(name="kb")
        client.bases.DeleteKnowledgeBase(drop, timeout=60, metadata=(("x-request-id", "by-me-1"),))
    said = capsys.readouterr().err
    lines = [json.loads(line) for line in said.splitlines() if '"event": "call"' in line]
    shown = [(line["method"].rpartition("/")[2], line["code"], line.get("key")) for line in lines]
    assert shown == [
        ("Ingest", "OK", secret.split("_")[1]),
        ("DeleteKnowledgeBase", "PERMISSION_DENIED", reader.split("_")[1]),
        ("ListKnowledgeBases", "UNAUTHENTICATED", None),
        ("DeleteKnowledgeBase", "OK", secret.split("_")[1]),
    ]
    assert (lines[0]["tenant"], lines[0]["documents"]) == ("acme", {"stored": 1, "failed": 1})
    assert lines[1]["reason"] == "SCOPE_TOO_SMALL"
    assert (lines[3]["request_id"], lines[3]["knowledge_base"]) == ("by-me-1", "kb")
    assert secret.split("_", 2)[2] not in said
    assert "My diary" not in said


def test_a_key_that_only_retrieves_is_seen_in_the_log_once_an_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is still used must be seen before it is revoked."""
    keys = tmp_path / "keys.json"
    admin, reader = new_key(keys, {"*": "admin"}), new_key(keys, {"*": "read"}, "acme")
    configure_logs("info")

    def used() -> list[str]:
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
        return [line["key"] for line in lines if line["event"] == "key_used" and line["tenant"] == "acme"]

    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", keys=keys) as (nobody, _):
        with_key(nobody.channel, admin).bases.CreateKnowledgeBase(
            knowledge_bases_pb2.CreateKnowledgeBaseRequest(name="acme/kb"), timeout=60
        )
        phone, key_id = with_key(nobody.channel, reader), reader.split("_")[1]
        assert [phone.hits("kb", "x"), phone.hits("kb", "x")] == [[], []]
        assert used() == [key_id]
        monkeypatch.setattr(interceptors, "_USE_LOGGED_EVERY_S", 0.0)
        phone.hits("kb", "x")
        assert used() == [key_id], "an hour later"


DOCUMENTS = [document(f"d{n}", f"Text {n}.") for n in range(8)]
SERVING = 1


def harm(engine: str, folder: Path) -> None:
    """Cuts a file of the second knowledge base; the first is the default one."""
    if engine == "file":
        (file,) = folder.glob("kb-000002-*/documents.sqlite3")
    else:
        parts = [path.parent for path in folder.rglob("2_*/columns.txt") if "`embedding`" in path.read_text()]
        file = max(parts[0].glob("*.bin"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[: -20_000 if engine == "file" else -5])


@pytest.mark.parametrize("engine", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
def test_one_damaged_knowledge_base_is_isolated_and_named(tmp_path: Path, engine: str) -> None:
    with service(tmp_path, engine=engine) as running, client_of(running) as client:
        client.ingest("harmed", *DOCUMENTS)
        client.ingest("sound", *DOCUMENTS)
        running.process.terminate()
        assert running.process.wait(120) == 0
    harm(engine, tmp_path / "store")
    with service(tmp_path, engine=engine) as running, client_of(running) as client:
        assert '"event": "knowledge_base_refused"' in running.log.read_text()
        assert status(client) == status(client, "memory.v1.Retrieval") == SERVING
        for call in (
            lambda: client.hits("harmed", "x"),
            lambda: client.delete("harmed", "d1"),
            lambda: client.statistics("harmed"),
            lambda: client.ingest("harmed", document("new", "New.")),
        ):
            error = refused(call)
            assert (error.code, error.reason) == (grpc.StatusCode.DATA_LOSS, "KNOWLEDGE_BASE_DAMAGED")
        listed = client.bases.ListKnowledgeBases(
            knowledge_bases_pb2.ListKnowledgeBasesRequest(), timeout=60
        ).knowledge_bases
        states = {base.name: (base.state, bool(base.problem)) for base in listed}
        assert states.pop("harmed") == (knowledge_bases_pb2.KNOWLEDGE_BASE_STATE_DAMAGED, True)
        assert set(states.values()) == {(knowledge_bases_pb2.KNOWLEDGE_BASE_STATE_READY, False)}
        # The others are read and written, and the harmed one can be deleted and filled anew.
        client.ingest("sound", document("new", "New."))
        assert client.keys("sound") == [*(one.key for one in DOCUMENTS), "new"]
        client.drop("harmed")
        client.ingest("harmed", *DOCUMENTS)
        assert client.keys("harmed") == [one.key for one in DOCUMENTS]


@pytest.fixture(scope="module")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "decoder.onnx").write_bytes(np.random.default_rng(0).bytes((2 << 20) + 5))
    (folder / "manifest.json").write_text(json.dumps({"files": {"decoder.onnx": {}}}))
    (folder / "private.txt").write_text("not in the manifest")
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, bundle_folder: Path) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("store"), HashEncoder(), bundle=bundle_folder) as (client, _):
        yield client


def test_describe_tells_what_a_client_must_match(client: Client) -> None:
    identity = HashEncoder().description.identity
    reply = client.models.Describe(models_pb2.DescribeRequest(), timeout=60)
    assert (reply.model_id, reply.codec_id) == (identity.model_id, identity.codec_id)
    assert (reply.memory_format_id, reply.embedder_id) == (identity.memory_format_id, identity.embedder_id)
    assert (reply.dimension, reply.memories_per_chunk, reply.reference_tokens) == (DIMENSION, 5, 128)
    assert json.loads(reply.model_config_json) == {"name": "test"}
    assert (reply.limits.queries, reply.limits.k, reply.limits.hits) == (256, 100, 1280)
    assert (reply.limits.request_bytes, reply.limits.payload_bytes) == (32 << 20, PAYLOAD_BYTES + 16)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (models_pb2.FetchBundleRequest(file="private.txt"), "BUNDLE_FILE_NOT_FOUND"),
        (models_pb2.FetchBundleRequest(file="../../etc/passwd"), "BUNDLE_FILE_NOT_FOUND"),
        (models_pb2.FetchBundleRequest(file="decoder.onnx", offset=1 << 40), "INVALID_ARGUMENT"),
    ],
)
def test_only_the_manifests_files_served(client: Client, request_: models_pb2.FetchBundleRequest, reason: str) -> None:
    assert refused(lambda: list(client.models.FetchBundle(request_, timeout=60))).reason == reason


def test_health_answers_for_every_service_and_reflection_lists_them(client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", *SERVICES):
        reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (reply,) = stub.ServerReflectionInfo(iter([request]), timeout=60)
    names = {service.name for service in reply.list_services_response.service}
    assert set(SERVICES) <= names


def test_no_knowledge_base_is_deleted_without_its_name(client: Client) -> None:
    assert "default" in client.names()
    refusal = refused(lambda: client.drop(""))
    assert (refusal.reason, refusal.field) == ("INVALID_ARGUMENT", "name")
    assert "default" in client.names()
