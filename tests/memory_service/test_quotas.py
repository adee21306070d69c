"""Quotas: a verdict for each document, room for what is written later, and gauges that say what is stored."""

import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from memory_service.access.keys import changing
from memory_service.api.gauges import STATES
from memory_service.errors import KnowledgeBaseDamaged, KnowledgeBaseNotFound, ServiceError, StoreUnavailable
from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import KnowledgeBase, Statistics
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1.knowledge_bases_pb2 import ListKnowledgeBasesRequest
from testing.encoders import DIMENSION, PAYLOAD_BYTES, HashEncoder
from tests.memory_service.encoders import Gated
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import (
    Client,
    document,
    eventually,
    ingest_later,
    ingest_requests,
    metric,
    outcomes,
    running,
    unwritten,
)

every_store = pytest.mark.parametrize("engine", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
STORED, REPLACED = pb.INGEST_OUTCOME_STORED, pb.INGEST_OUTCOME_REPLACED


def limited(folder: Path, references: int, size_bytes: int) -> tuple[Path, str]:
    """A key file, and the secret of a tenant with these quotas."""
    keys = folder / "keys.json"
    secret = new_key(keys, {"*": "admin"}, "acme")
    with changing(keys) as file:
        file.with_quota("acme", references, size_bytes, 0.0).write(keys)
    return keys, secret


@every_store
def test_at_its_quota_a_tenant_replaces_documents_and_each_document_has_its_verdict(
    tmp_path: Path, engine: str
) -> None:
    keys, secret = limited(tmp_path, 100, 0)
    with running(tmp_path, HashEncoder(), store=f"{engine}://{tmp_path}/s", keys=keys) as (nobody, _):
        client = with_key(nobody.channel, secret)
        assert set(outcomes(client, *((f"d{n}", f"Fact {n}: one.") for n in range(90)))) == {STORED}
        mixed = [one for n in range(20) for one in ((f"d{n}", f"Fact {n}: two."), (f"n{n}", f"New {n}."))]
        found = outcomes(client, *mixed)
        assert found[::2] == [REPLACED] * 20
        assert sorted(map(str, found[1::2])) == ["1"] * 10 + ["QUOTA_EXCEEDED"] * 10
        assert client.counts("kb") == (100, 100)
        assert outcomes(client, ("d0", "Fact 0: three.")) == [REPLACED]
        with changing(keys) as file:
            file.with_quota("acme", 50, 0, 0.0).write(keys)
        eventually(lambda: outcomes(client, ("new", "New.")) == ["QUOTA_EXCEEDED"])
        assert outcomes(client, ("d0", "Fact 0: four.")) == [REPLACED], "also after the quota was made smaller"


@every_store
def test_what_a_cold_start_accepts_is_written_within_the_quota(tmp_path: Path, engine: str) -> None:
    per_document = PAYLOAD_BYTES + 16 + 4 * DIMENSION + 40
    keys, secret = limited(tmp_path, 0, 20 * per_document)
    with running(tmp_path, HashEncoder(), store=f"{engine}://{tmp_path}/s", keys=keys) as (nobody, _):
        client = with_key(nobody.channel, secret)
        accepted = ingest_later(client, "kb", *(document(f"d{n:02}", f"Fact {n:02}: lamps.") for n in range(40)))
        assert 15 <= len(accepted) <= 25
        eventually(lambda: unwritten(client) == 0)
        assert len(list(client.export("kb"))) > 1
        hits = client.hits("kb", "Fact 03: lamps.", 1)
        assert hits[0].document_key == "d03"


@pytest.mark.parametrize("error", [KnowledgeBaseNotFound, KnowledgeBaseDamaged])
def test_a_knowledge_base_that_cannot_be_counted_refuses_no_document_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[ServiceError]
) -> None:
    keys, secret = limited(tmp_path, 100, 0)
    statistics = LocalStore.statistics

    def gone(store: LocalStore, base: KnowledgeBase) -> Statistics:
        if base.name.endswith("other"):
            raise error("gone")
        return statistics(store, base)

    with running(tmp_path, HashEncoder(), keys=keys) as (nobody, _):
        client = with_key(nobody.channel, secret)
        client.create("other")
        monkeypatch.setattr(LocalStore, "statistics", gone)
        assert outcomes(client, ("a", "Text.")) == [STORED]


def test_calls_are_answered_while_a_deletion_waits_for_the_count_of_a_tenant(tmp_path: Path) -> None:
    with running(tmp_path, HashEncoder()) as (client, server):
        client.create("kb")
        assert server.store is not None
        assert server._late is not None
        dropping = threading.Thread(target=client.drop, args=["kb"])
        with server._late._runtime.guard._lock:  # as a slow store holds it
            dropping.start()
            eventually(lambda: [base.name for base in server.store.knowledge_bases()] == ["default"])  # type: ignore[union-attr]
            time.sleep(0.1)
            answer = client.bases.ListKnowledgeBases(ListKnowledgeBasesRequest(), timeout=2)
        assert [base.name for base in answer.knowledge_bases] == ["default"]
        dropping.join()


def test_a_scrape_asks_a_store_that_is_away_once_at_most_and_keeps_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def away(_: LocalStore, base: KnowledgeBase) -> NoReturn:
        asked.append(base.name)
        raise StoreUnavailable("no answer")

    with running(tmp_path, HashEncoder(), metrics_listen="127.0.0.1:0", health_interval_s=600) as (client, server):
        for n in range(3):
            client.ingest(f"kb{n}", document("a", "Text."))
        use = 'memory_service_tenant_use{quantity="references",tenant=""}'
        assert metric(server.metrics_port, use) == 3
        monkeypatch.setattr(LocalStore, "revision", away)
        assert metric(server.metrics_port, use) == 3
        assert len(asked) == 1
        server._health.up = False
        assert metric(server.metrics_port, use) == 3
        assert len(asked) == 1


def test_a_retrieval_ends_the_pause_after_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_service.write.cold_start._LONGEST_PAUSE_S", 600.0)
    monkeypatch.setattr("memory_service.write.cold_start._FIRST_PAUSE_S", 0.05)
    failing, read = [True], LocalStore.document

    def document_or_fail(store: LocalStore, *more: Any, **named: Any) -> object:
        if failing[0]:
            raise StoreUnavailable("away")
        return read(store, *more, **named)

    monkeypatch.setattr(LocalStore, "document", document_or_fail)
    with running(tmp_path, HashEncoder()) as (client, server):
        ingest_later(client, "kb", document("a", "Text."))
        assert server._late is not None
        (backlog,) = [one for one in server._late._backlogs.values() if one._base.name == "kb"]
        eventually(lambda: bool(backlog.progress.problem))
        monkeypatch.setattr("memory_service.write.cold_start._FIRST_PAUSE_S", 0.2)
        failing[0] = False
        eventually(lambda: bool(client.hits("kb", "Text.", 1)))


@every_store
def test_gauges_say_what_is_stored_after_every_operation(tmp_path: Path, engine: str) -> None:
    keys, secret = limited(tmp_path, 1000, 1_000_000)
    encoder = Gated()
    settings = {"store": f"{engine}://{tmp_path}/s", "keys": keys, "metrics_listen": "127.0.0.1:0", "warm_up": False}

    def agree(client: Client, port: int, documents: int, later: int = 0) -> None:
        """References are one a document here."""
        statistics = client.statistics("kb")
        assert (statistics.document_count, statistics.unwritten_document_count) == (documents, later)
        size = statistics.payload_bytes + statistics.text_bytes + 4 * DIMENSION * documents
        use = 'memory_service_tenant_use{quantity="%s",tenant="acme"}'
        assert metric(port, use % "references") == documents
        assert metric(port, use % "bytes") == size + later * (PAYLOAD_BYTES + 16)
        assert metric(port, use.replace("use", "quota") % "references") == 1000
        for what in ("documents", "references"):
            assert metric(port, f'memory_service_unwritten{{what="{what}"}}') == later

    with running(tmp_path, encoder, **settings) as (nobody, server):
        client, port = with_key(nobody.channel, secret), server.metrics_port
        encoder.stopping = server._draining.is_set
        encoder.let_go.set()
        client.ingest("kb", *(document(f"d{n}", f"Text {n}.") for n in range(6)))
        agree(client, port, 6)
        client.ingest("kb", document("d0", "Other."), document("d1", "Text 1."), document("bad", ""))
        agree(client, port, 6)
        client.delete("kb", "d0", "d1", "absent")
        agree(client, port, 4)
        encoder.let_go.clear()
        ingest_later(client, "kb", document("late", "Later."))
        agree(client, port, 5, later=1)
        encoder.let_go.set()
        eventually(lambda: unwritten(client) == 0)
        agree(client, port, 5)
        states = {state: metric(port, f'memory_service_knowledge_bases{{state="{state}"}}') for state in STATES}
        assert states == {"ready": 2, "damaged": 0, "unavailable": 0, "mismatched": 0}
    with running(tmp_path, encoder, **settings) as (nobody, server):
        client, port = with_key(nobody.channel, secret), server.metrics_port
        agree(client, port, 5)
        requests = ingest_requests("kb", [document("half", "A text."), document("other", "Other.")])
        call = client.ingestion.Ingest(iter(requests), timeout=60)
        assert next(call).HasField("started")
        call.cancel()
        eventually(lambda: client.statistics("kb").document_count >= 5)
        client.drop("kb")
        assert metric(port, 'memory_service_tenant_use{quantity="references",tenant="acme"}') == 0
        assert metric(port, 'memory_service_knowledge_bases{state="ready"}') == 1
