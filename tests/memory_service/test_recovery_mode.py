"""Recovery mode: one knowledge base's files are harmed; it is named and refused everywhere, the others are served."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from tests.memory_service.api.test_operations import status
from tests.memory_service.processes import client_of, service
from tests.memory_service.running import document, refused

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
            lambda: client.hits("harmed", "x"), lambda: client.delete("harmed", "d1"),
            lambda: client.statistics("harmed"), lambda: client.ingest("harmed", document("new", "New.")),
        ):  # fmt: skip
            error = refused(call)
            assert (error.code, error.reason) == (grpc.StatusCode.DATA_LOSS, "KNOWLEDGE_BASE_DAMAGED")
        listed = client.bases.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest(), timeout=60).knowledge_bases
        states = {base.name: (base.state, bool(base.problem)) for base in listed}
        assert states.pop("harmed") == (kb_pb.KNOWLEDGE_BASE_STATE_DAMAGED, True)
        assert set(states.values()) == {(kb_pb.KNOWLEDGE_BASE_STATE_READY, False)}
        # The others are read and written, and the harmed one can be deleted and filled anew.
        client.ingest("sound", document("new", "New."))
        assert client.keys("sound") == [*(one.key for one in DOCUMENTS), "new"]
        client.drop("harmed")
        client.ingest("harmed", *DOCUMENTS)
        assert client.keys("harmed") == [one.key for one in DOCUMENTS]
