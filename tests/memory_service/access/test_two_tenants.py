"""Two tenants under the same names on one service: each finds what is his, and nothing tells of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from protos.memory.v1 import operations_pb2
from protos.memory.v1.filter_pb2 import Filter
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, refusal, running

TENANTS = ("one", "two")


def calls(client: Client, name: str) -> list[Callable[[], Any]]:
    """Everything that may be asked of a knowledge base by name; changes nothing in one that is not there."""
    return [
        lambda: client.retrieve(name, vector_of("Text 0.")[None]),
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


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    found = refusal(caught.value)
    return found.code, found.reason, found.message


def finds(client: Client) -> dict[str, Counter[tuple[str, str]]]:
    """Key and text of all that a tenant finds, by knowledge base; what is listed and counted is the same."""
    listed = client.bases.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=60)
    names = sorted(base.name for base in listed.knowledge_bases)
    operations = client.operations.ListOperations(operations_pb2.ListOperationsRequest(), timeout=60)
    assert sorted(one.knowledge_base for one in operations.operations) == names
    found = {}
    for name in names:
        hits = client.retrieve(name, vector_of("any")[None], k=100, return_text=True).results[0].hits
        found[name] = Counter((hit.document_key, hit.text) for hit in hits)
        counts = client.bases.GetStatistics(kb_pb.GetStatisticsRequest(name=name), timeout=60)
        assert counts.reference_count == found[name].total()
    return found


@pytest.mark.parametrize("engine", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
def test_no_tenant_sees_counts_or_disturbs_the_other(tmp_path: Path, engine: str) -> None:
    keys = tmp_path / "keys.json"
    secrets = [new_key(keys, {"*": "admin"}, name) for name in TENANTS]
    with running(tmp_path, HashEncoder(), store=f"{engine}://{tmp_path}/store", keys=keys) as (nobody, _):
        mine, his = (with_key(nobody.channel, secret) for secret in secrets)
        for client, text in ((mine, "Mine."), (his, "His.")):
            answers = client.ingest("a", document("same", "The same."), document("own", text))[1:]
            assert {answer.acknowledged.outcome for answer in answers} == {pb.INGEST_OUTCOME_STORED}
        his.ingest("b", document("d", "D."))
        both = Counter([("same", "The same."), ("own", "His.")])
        assert finds(mine) == {"a": Counter([("same", "The same."), ("own", "Mine.")])}
        # The other's, by any spelling, is refused in the very words of what nobody has.
        for which, nobodys in enumerate(map(refused, calls(mine, "nobodys"))):
            assert nobodys[:2] == (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")
            for spelling in ("b", "two/b", "one/../two/b", "/two/b", "default"):
                told = refused(calls(mine, spelling)[which])
                assert told == (*nobodys[:2], nobodys[2].replace("'nobodys'", f"'{spelling}'", 1))
        request = pb.DeleteRequest(knowledge_base="a", document_keys=["same"])
        assert mine.ingestion.Delete(request, timeout=60).documents_deleted == 1
        assert finds(his) == {"a": both, "b": Counter([("d", "D.")])}
        mine.bases.DeleteKnowledgeBase(kb_pb.DeleteKnowledgeBaseRequest(name="a"), timeout=60)
        assert finds(mine) == {}
        assert finds(his) == {"a": both, "b": Counter([("d", "D.")])}
