"""The stages of a distributed ingestion one after the other, without Ray, against a real service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from memory_model.errors import ModelMismatch
from memory_model.formats import read_documents
from memory_service.client.connection import RemoteError
from memory_service.client.ingest import Destination, Row
from memory_service.client.ray import Send, Store, Write, rows_of, table_of
from memory_service.stores import open_store
from memory_service.write.encoder import EncodedReferences
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2
from tests.memory_service.encoders import HashEncoder
from tests.memory_service.running import Client, document, running
from tests.memory_service.stored import IDENTITY
from tests.memory_service.worker_models import HashModel


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str, HashEncoder]]:
    encoder = HashEncoder()
    folder = tmp_path_factory.mktemp("service")
    settings = {
        "store": f"file://{folder / 'store'}",
        "message_limit_bytes": 1 << 20,
        "document_limit_bytes": 1 << 18,
    }
    with running(folder, encoder, **settings) as (client, server):
        yield client, f"127.0.0.1:{server.port}", encoder


def destination(served: tuple[Client, str, HashEncoder], name: str, overlap: int = 0) -> Destination:
    client, address, _ = served
    client.bases.CreateKnowledgeBase(knowledge_bases_pb2.CreateKnowledgeBaseRequest(name=name), timeout=60)
    return Destination(address, name, overlap)


def through(rows: Sequence[Row], to: Destination, folder: Path) -> list[Row]:
    """All stages; between them rows are tables, as between Ray's workers."""
    model = HashModel(folder)
    order = {row.where: number for number, row in enumerate(rows)}
    for stage in (Write(to, model), Send(to)):
        rows = rows_of(table_of(stage(rows)))
    return sorted(rows, key=lambda row: order[row.where])


def test_documents_written_by_a_worker_are_those_that_the_service_would_have_written(
    served: tuple[Client, str, HashEncoder], tmp_path: Path
) -> None:
    client, _, encoder = served
    to = destination(served, "workers")
    texts = {f"k{n}": f"Fact {n}. " * (n + 1) for n in range(40)}
    file = tmp_path / "facts.jsonl"
    lines = [json.dumps({"key": key, "title": "T", "text": text}) for key, text in texts.items()]
    file.write_text("\n".join([*lines, '{"key": "empty", "text": " "}', '{"key": "broken"}']))
    before = encoder.encoded
    rows = through([Row.of(one) for one in read_documents(file, file)], to, tmp_path)
    assert [row.outcome for row in rows] == ["stored"] * 40 + ["failed"] * 2
    assert [row.reason for row in rows[40:]] == ["DOCUMENT_EMPTY", "UNREADABLE"]
    assert rows[41].where == f"{file}, line 42"
    assert encoder.encoded == before, "the service wrote nothing itself"

    again = through([Row.of(one) for one in read_documents(file, file)], to, tmp_path)
    assert [row.outcome for row in again] == ["unchanged"] * 40 + ["failed"] * 2
    assert [row.references for row in again[:40]] == [row.references for row in rows[:40]]
    answers = client.ingest("workers", *(document(key, text, "T") for key, text in texts.items()))
    assert {a.acknowledged.outcome for a in answers[1:]} == {pb.INGEST_OUTCOME_UNCHANGED}
    assert encoder.encoded == before


def test_another_text_or_another_cut_replaces_and_a_cold_document_gets_its_memories(
    served: tuple[Client, str, HashEncoder], tmp_path: Path
) -> None:
    client, _, _ = served
    to = destination(served, "changes")
    file = tmp_path / "a.txt"
    file.write_text("One sentence. Another sentence.")
    (row,) = map(Row.of, read_documents(file.resolve(), Path("a.txt")))
    assert (row.key, through([row], to, tmp_path)[0].outcome) == ("a.txt", "stored")
    assert through([row], Destination(to.address, "changes", 8), tmp_path)[0].outcome == "replaced"

    start = pb.IngestStart(knowledge_base="changes", memory_writing=pb.MEMORY_WRITING_LATER)
    cold = pb.IngestItem(sequence=1, document=document("cold", "Not written yet."))
    requests = [pb.IngestRequest(start=start), pb.IngestRequest(item=cold)]
    list(client.ingestion.Ingest(iter(requests), timeout=60))
    request = pb.GetVersionsRequest(knowledge_base="changes", document_keys=["none", "cold"])
    (version,) = client.ingestion.GetVersions(request, timeout=60).versions
    assert version.document_key == "cold"
    warm = Row("x", "", "cold", pb.IngestItem(document=cold.document))
    assert through([warm], to, tmp_path)[0].outcome in ("replaced", "unchanged")  # or the service was faster
    (version,) = client.ingestion.GetVersions(request, timeout=60).versions
    assert version.memories_written


def test_a_document_larger_than_one_message_is_sent_in_pieces(
    served: tuple[Client, str, HashEncoder], tmp_path: Path
) -> None:
    _, _, encoder = served
    to = destination(served, "large")
    before = encoder.encoded
    texts = ["Some words here. " * 45_000, "Some words here. " * 70_000]
    items = [pb.IngestItem(document=document(f"k{n}", text)) for n, text in enumerate(texts)]
    rows = [Row("x", "", f"k{n}", item) for n, item in enumerate(items)]
    large, larger = through(rows, to, tmp_path)
    assert (large.outcome, encoder.encoded) == ("stored", before)
    assert large.references > 1000
    assert (larger.outcome, larger.reason) == ("failed", "DOCUMENT_TOO_LARGE")


def test_workers_write_to_a_store_that_several_may_write_to(
    served: tuple[Client, str, HashEncoder], tmp_path: Path
) -> None:
    to = destination(served, "direct")
    items = [document(key, text) for key, text in (("a", "One."), ("b", "Two."), ("a", "Three."))]
    rows = [Row("x", "", item.key, pb.IngestItem(document=item)) for item in items]
    model = HashModel(tmp_path)
    written = Write(to, model)(rows)
    store = open_store(f"chdb://{tmp_path}/store")
    base = store.create("direct", "", IDENTITY)
    store.close()
    direct = Store(to, {"store": f"chdb://{tmp_path}/store"})
    try:
        assert [row.outcome for row in direct(rows_of(table_of(written)))] == ["stored", "stored", "replaced"]
        assert [row.outcome for row in direct(written[2:])] == ["unchanged"]
        document_a = direct._store.document(base, "a")
        assert [text for _, text in document_a.references] == ["Three."]
        assert document_a.content_hash == to.content_hash(items[2])
    finally:
        direct._store.close()


def test_a_document_that_the_model_cannot_write_fails_alone(
    served: tuple[Client, str, HashEncoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = destination(served, "one-bad")
    encode = HashEncoder.encode

    def refusing(self: HashEncoder, references: Sequence[str]) -> EncodedReferences:
        if any("poison" in text for text in references):
            raise RuntimeError("the model fell over")
        return encode(self, references)

    monkeypatch.setattr(HashEncoder, "encode", refusing)
    items = [pb.IngestItem(document=document(f"k{n}", text)) for n, text in enumerate(["a", "poison", "c"])]
    rows = [Row("x", "", f"k{n}", item) for n, item in enumerate(items)]
    done = through(rows, to, tmp_path)
    assert [row.outcome for row in done] == ["stored", "failed", "stored"]
    assert done[1].reason == "ENCODING_FAILED"


def test_a_worker_with_another_model_and_a_missing_knowledge_base_stop_it(
    served: tuple[Client, str, HashEncoder], tmp_path: Path
) -> None:
    _, address, _ = served
    with pytest.raises(ModelMismatch, match="service's model"):
        Write(Destination(address, "default"), HashModel(tmp_path, name="other"))
    nowhere = Destination(address, "nowhere")
    item = pb.IngestItem(document=document("k", "Text."))
    row = Row("x", "", "k", item)
    for stage in (Write(nowhere, HashModel(tmp_path)), Send(nowhere)):
        with pytest.raises(RemoteError, match="nowhere"):
            stage([row])
