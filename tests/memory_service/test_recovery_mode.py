"""Recovery mode: one knowledge base's files are harmed; it is named and refused everywhere, the others are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from tests.memory_service.api.test_operations import status
from tests.memory_service.encoders import vector_of
from tests.memory_service.processes import client_of, service
from tests.memory_service.running import Client, document, refusal

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


def names_found(client: Client, base: str) -> set[str]:
    return {hit.document_key for hit in client.retrieve(base, vector_of("x")[None], k=50).results[0].hits}


def refused(call: Any, *arguments: Any) -> bool:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    said = refusal(caught.value)
    return (said.code, said.reason) == (grpc.StatusCode.DATA_LOSS, "KNOWLEDGE_BASE_DAMAGED")


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
        delete = pb.DeleteRequest(knowledge_base="harmed", document_keys=["d1"])
        assert refused(client.retrieve, "harmed", vector_of("x")[None])
        assert refused(client.ingestion.Delete, delete)
        assert refused(client.bases.GetStatistics, kb_pb.GetStatisticsRequest(name="harmed"))
        assert refused(client.ingest, "harmed", document("new", "New."))
        listed = client.bases.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=60).knowledge_bases
        states = {base.name: (base.state, bool(base.problem)) for base in listed}
        assert states.pop("harmed") == (kb_pb.KNOWLEDGE_BASE_STATE_DAMAGED, True)
        assert set(states.values()) == {(kb_pb.KNOWLEDGE_BASE_STATE_READY, False)}
        # The others are read and written, and the harmed one can be deleted and filled anew.
        client.ingest("sound", document("new", "New."))
        assert names_found(client, "sound") == {*(one.key for one in DOCUMENTS), "new"}
        client.bases.DeleteKnowledgeBase(kb_pb.DeleteKnowledgeBaseRequest(name="harmed"), timeout=60)
        client.ingest("harmed", *DOCUMENTS)
        assert names_found(client, "harmed") == {one.key for one in DOCUMENTS}
