"""Two tenants do whatever they like on one service: each finds what is his, and nothing tells of the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import operations_pb2
from protos.memory.v1.filter_pb2 import Filter
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, refusal, running

TENANTS = ("one", "two")
TEXTS = [f"Text {n}." for n in range(6)]
tenants, bases = st.sampled_from(TENANTS), st.sampled_from(["a", "b"])
# Both write the same documents, under the same keys: one's must neither stand for the other's nor go with them.
keys, texts = st.sampled_from(["d1", "d2", "d3"]), st.sampled_from(TEXTS)


@dataclass
class Tenant:
    """One tenant's stubs, and what must be his: knowledge base -> document key -> text."""

    client: Client
    holds: dict[str, dict[str, str]] = field(default_factory=dict)

    def refused(self, call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        found = refusal(caught.value)
        return found.code, found.reason, found.message

    def calls(self, name: str) -> list[Callable[[], Any]]:
        """Everything that may be asked of a knowledge base by name; changes nothing in one that is not there."""
        client = self.client
        return [
            lambda: client.retrieve(name, vector_of(TEXTS[0])[None]),
            lambda: client.ingest(name, document("d", "T."), create=False),
            lambda: client.ingestion.Delete(pb.DeleteRequest(knowledge_base=name, document_keys=["d1"]), timeout=60),
            lambda: client.ingestion.GetDocument(
                pb.GetDocumentRequest(knowledge_base=name, document_key="d1"), timeout=60
            ),
            lambda: client.ingestion.Upsert(
                pb.UpsertRequest(knowledge_base=name, document=document("d", "T.")), timeout=60
            ),
            lambda: client.ingestion.Delete(
                pb.DeleteRequest(knowledge_base=name, filter=Filter(exists="a")), timeout=60
            ),
            lambda: client.ingestion.ListDocuments(pb.ListDocumentsRequest(knowledge_base=name), timeout=60),
            lambda: client.operations.GetOperation(
                operations_pb2.GetOperationRequest(name=f"write-memories/{name}"), timeout=60
            ),
            lambda: client.operations.ListOperations(
                operations_pb2.ListOperationsRequest(knowledge_base=name), timeout=60
            ),
            lambda: client.bases.GetKnowledgeBase(kb_pb.GetKnowledgeBaseRequest(name=name), timeout=60),
            lambda: client.bases.GetStatistics(kb_pb.GetStatisticsRequest(name=name), timeout=60),
            lambda: list(client.bases.ExportKnowledgeBase(kb_pb.ExportKnowledgeBaseRequest(name=name), timeout=60)),
            lambda: client.bases.DeleteKnowledgeBase(kb_pb.DeleteKnowledgeBaseRequest(name=name), timeout=60),
        ]  # fmt: skip


class TwoTenants(RuleBasedStateMachine):
    """The model: what each tenant did is what he finds."""

    clients: dict[str, Client]

    def __init__(self) -> None:
        super().__init__()
        self.all = {name: Tenant(client) for name, client in self.clients.items()}

    @rule(who=tenants, name=bases)
    def create(self, who: str, name: str) -> None:
        tenant = self.all[who]
        request = kb_pb.CreateKnowledgeBaseRequest(name=name)
        if name in tenant.holds:
            made = tenant.refused(lambda: tenant.client.bases.CreateKnowledgeBase(request, timeout=60))
            assert made[:2] == (grpc.StatusCode.ALREADY_EXISTS, "KNOWLEDGE_BASE_EXISTS")
        else:
            tenant.client.bases.CreateKnowledgeBase(request, timeout=60)
            tenant.holds[name] = {}

    @rule(who=tenants, name=bases)
    def drop(self, who: str, name: str) -> None:
        tenant = self.all[who]
        if name in tenant.holds:
            request = kb_pb.DeleteKnowledgeBaseRequest(name=name)
            tenant.client.bases.DeleteKnowledgeBase(request, timeout=60)
            del tenant.holds[name]

    def _ingest(self, who: str, name: str, documents: dict[str, str]) -> None:
        tenant = self.all[who]
        before = tenant.holds.get(name, {})
        answers = tenant.client.ingest(name, *[document(key, text) for key, text in documents.items()])[1:]
        for answer, (key, text) in zip(answers, documents.items(), strict=True):
            expected = pb.INGEST_OUTCOME_REPLACED if key in before else pb.INGEST_OUTCOME_STORED
            if before.get(key) == text:
                expected = pb.INGEST_OUTCOME_UNCHANGED
            assert answer.acknowledged.outcome == expected
        tenant.holds[name] = before | documents

    @rule(who=tenants, name=bases, documents=st.dictionaries(keys, texts, min_size=1))
    def ingest(self, who: str, name: str, documents: dict[str, str]) -> None:
        self._ingest(who, name, documents)

    @rule(
        name=bases,
        mine=st.dictionaries(keys, texts, min_size=1),
        his=st.dictionaries(keys, texts, min_size=1),
    )
    def ingest_at_the_same_time(self, name: str, mine: dict[str, str], his: dict[str, str]) -> None:
        wrong: list[BaseException] = []

        def ingest(who: str, documents: dict[str, str]) -> None:
            try:
                self._ingest(who, name, documents)
            except BaseException as error:
                wrong.append(error)

        threads = [
            threading.Thread(target=ingest, args=each) for each in zip(TENANTS, (mine, his), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong

    @rule(who=tenants, name=bases, gone=st.lists(keys, min_size=1, unique=True))
    def delete(self, who: str, name: str, gone: list[str]) -> None:
        tenant = self.all[who]
        if name not in tenant.holds:
            return
        request = pb.DeleteRequest(knowledge_base=name, document_keys=gone)
        deleted = tenant.client.ingestion.Delete(request, timeout=60)
        there = [key for key in gone if tenant.holds[name].pop(key, None) is not None]
        assert (deleted.documents_deleted, deleted.references_deleted) == (len(there), len(there))

    @rule(who=tenants, name=bases, which=st.integers(0, 12))
    def ask_for_what_is_not_his(self, who: str, name: str, which: int) -> None:
        """The other's, by any spelling, is refused in the very words of what nobody has."""
        tenant, other = self.all[who], TENANTS[1 - TENANTS.index(who)]
        nobodys = tenant.refused(tenant.calls("nobodys")[which])
        assert nobodys[:2] == (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")
        for spelling in (f"{other}/{name}", f"{who}/../{other}/{name}", f"/{other}/{name}", "default"):
            refused = tenant.refused(tenant.calls(spelling)[which])
            assert refused == (*nobodys[:2], nobodys[2].replace("nobodys", spelling))
        if name not in tenant.holds:  # the other may have one of this name
            refused = tenant.refused(tenant.calls(name)[which])
            assert refused == (*nobodys[:2], nobodys[2].replace("'nobodys'", f"'{name}'", 1))

    @invariant()
    def each_finds_what_is_his(self) -> None:
        for tenant in self.all.values():
            operations = tenant.client.operations.ListOperations(
                operations_pb2.ListOperationsRequest(), timeout=60
            )
            assert sorted(one.knowledge_base for one in operations.operations) == sorted(tenant.holds)
            listed = tenant.client.bases.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=60)
            assert sorted(base.name for base in listed.knowledge_bases) == sorted(tenant.holds)
            for name, documents in tenant.holds.items():
                found = tenant.client.retrieve(name, vector_of(TEXTS[0])[None], k=100, return_text=True)
                hits = Counter((hit.document_key, hit.text) for hit in found.results[0].hits)
                assert hits == Counter(documents.items())
                counts = tenant.client.bases.GetStatistics(kb_pb.GetStatisticsRequest(name=name), timeout=60)
                assert (counts.document_count, counts.reference_count) == (len(documents), len(documents))

    def teardown(self) -> None:
        for who in TENANTS:
            for name in list(self.all[who].holds):
                self.drop(who, name)


def tried(engine: str, folder: Path, examples: int, steps: int) -> None:
    """Runs so many examples against a service of its own."""
    path = folder / "keys.json"
    secrets = {name: new_key(path, {"*": "admin"}, name) for name in TENANTS}
    with running(folder, HashEncoder(), store=f"{engine}://{folder}/store", keys=path) as (nobody, _):
        clients = {name: with_key(nobody.channel, secret) for name, secret in secrets.items()}
        machine = type("Tried", (TwoTenants,), {"clients": clients})
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            machine,
            settings=settings(
                max_examples=examples, stateful_step_count=steps, deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip


@pytest.fixture(autouse=True)
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Thousands of calls are logged."""
    yield
    capsys.readouterr()


def test_no_tenant_sees_counts_or_disturbs_the_other(tmp_path: Path) -> None:
    tried("file", tmp_path, 5, 10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["file", "chdb"])
def test_no_tenant_sees_counts_or_disturbs_the_other_in_many_ways(tmp_path: Path, engine: str) -> None:
    tried(engine, tmp_path, *{"file": (100, 40), "chdb": (12, 25)}[engine])  # an engine takes its time
