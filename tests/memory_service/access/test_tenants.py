"""Two tenants of one service: neither finds, counts or disturbs what is the other's."""

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
from testing.encoders import HashEncoder
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, refused, running

TENANTS = ("one", "two")


def calls(client: Client, name: str) -> list[Callable[[], Any]]:
    """Everything that may be asked of a knowledge base by name; changes nothing in one that is not there."""
    upsert = pb.UpsertRequest(knowledge_base=name, document=document("d", "T."))
    operation = operations_pb2.GetOperationRequest(name=f"write-memories/{name}")
    operations = operations_pb2.ListOperationsRequest(knowledge_base=name)
    return [
        lambda: client.hits(name, "Text 0."),
        lambda: client.ingest(name, document("d", "T."), create=False),
        lambda: client.delete(name, "d1"),
        lambda: client.delete(name, filter=Filter(exists="a")),
        lambda: client.document(name, "d1"),
        lambda: client.ingestion.Upsert(upsert, timeout=60),
        lambda: client.listed(name),
        lambda: client.operations.GetOperation(operation, timeout=60),
        lambda: client.operations.ListOperations(operations, timeout=60),
        lambda: client.bases.GetKnowledgeBase(kb_pb.GetKnowledgeBaseRequest(name=name), timeout=60),
        lambda: client.statistics(name),
        lambda: list(client.export(name)),
        lambda: client.drop(name),
    ]


def refusal_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str]:
    found = refused(call)
    return found.code, found.reason, found.message


def finds(client: Client) -> dict[str, Counter[tuple[str, str]]]:
    """Key and text of all that a tenant finds, by knowledge base; what is listed and counted is the same."""
    names = sorted(client.names())
    operations = client.operations.ListOperations(operations_pb2.ListOperationsRequest(), timeout=60)
    assert sorted({one.knowledge_base for one in operations.operations}) == names
    found = {}
    for name in names:
        hits = client.hits(name, "any", 100, return_text=True)
        found[name] = Counter((hit.document_key, hit.text) for hit in hits)
        assert client.counts(name)[1] == found[name].total()
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
        for which, nobodys in enumerate(map(refusal_of, calls(mine, "nobodys"))):
            assert nobodys[:2] == (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")
            for spelling in ("b", "two/b", "one/../two/b", "/two/b", "default"):
                told = refusal_of(calls(mine, spelling)[which])
                assert told == (*nobodys[:2], nobodys[2].replace("'nobodys'", f"'{spelling}'", 1))
        assert mine.delete("a", "same").documents_deleted == 1
        assert finds(his) == {"a": both, "b": Counter([("d", "D.")])}
        mine.drop("a")
        assert finds(mine) == {}
        assert finds(his) == {"a": both, "b": Counter([("d", "D.")])}
