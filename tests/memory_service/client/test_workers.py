"""Workers that write the memories of an ingestion, against a real service: stages, processes and shares."""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from memory3.errors import InvalidInput, ModelMismatch
from memory3.formats import read_documents
from memory_service.client.connection import RemoteError
from memory_service.client.ingest import Destination, Upload
from memory_service.client.share import Share
from memory_service.client.workers import ROWS, IngestionStopped, Send, Store, Work, Write, ingest_with_workers
from memory_service.encoder import EncodedReferences
from memory_service.settings import Settings
from memory_service.stores.opening import open_store
from protos.memory.v1 import ingestion_pb2 as pb
from testing.encoders import HashEncoder, HashModel
from tests.memory_service.running import Client, document, running
from tests.memory_service.stored import IDENTITY


class Served(NamedTuple):
    """A service, to whose knowledge bases workers write."""

    client: Client
    address: str
    encoder: HashEncoder

    def base(self, name: str) -> Destination:
        return Destination(self.address, self.client.create(name))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, encoder = tmp_path_factory.mktemp("service"), HashEncoder()
    limits = {"message_limit_bytes": 1 << 20, "document_limit_bytes": 1 << 18}
    with running(folder, encoder, store=f"file://{folder / 'store'}", **limits) as (client, server):
        yield Served(client, f"127.0.0.1:{server.port}", encoder)


def uploads(*texts: str) -> list[Upload]:
    """Documents k0, k1, …"""
    items = [pb.IngestItem(document=document(f"k{n}", text)) for n, text in enumerate(texts)]
    return [Upload(item.document.key, item, "x") for item in items]


def through(uploads: Sequence[Upload], to: Destination, folder: Path) -> list[Upload]:
    """Both stages."""
    order = {upload.where: number for number, upload in enumerate(uploads)}
    for stage in (Write(to, HashModel(folder)), Send(to)):
        uploads = stage(uploads)
    return sorted(uploads, key=lambda upload: order[upload.where])


def test_documents_written_by_a_worker_are_those_that_the_service_would_write(served: Served, tmp_path: Path) -> None:
    to = served.base("workers")
    texts = {f"k{n}": f"Fact {n}. " * (n + 1) for n in range(40)}
    file = tmp_path / "facts.jsonl"
    lines = [json.dumps({"key": key, "title": "T", "text": text}) for key, text in texts.items()]
    file.write_text("\n".join([*lines, '{"key": "empty", "text": " "}', '{"key": "broken"}']))
    before = served.encoder.encoded
    done = through([Upload.of(one) for one in read_documents(file, file)], to, tmp_path)
    assert [upload.outcome for upload in done] == ["stored"] * 40 + ["failed"] * 2
    assert [upload.reason for upload in done[40:]] == ["DOCUMENT_EMPTY", "UNREADABLE"]
    assert done[41].where == f"{file}, line 42"
    again = through([Upload.of(one) for one in read_documents(file, file)], to, tmp_path)
    assert [upload.outcome for upload in again] == ["unchanged"] * 40 + ["failed"] * 2
    assert [upload.references for upload in again[:40]] == [upload.references for upload in done[:40]]
    answers = served.client.ingest("workers", *(document(key, text, "T") for key, text in texts.items()))
    assert {a.acknowledged.outcome for a in answers[1:]} == {pb.INGEST_OUTCOME_UNCHANGED}
    assert served.encoder.encoded == before, "the service wrote nothing itself"


def test_a_worker_cuts_a_long_title_as_the_service_does(served: Served, tmp_path: Path) -> None:
    to, long = served.base("titles"), document("a", "One sentence.", " ".join(f"word{n}" for n in range(300)))
    (done,) = through([Upload("a", pb.IngestItem(document=long))], to, tmp_path)
    assert done.outcome == "stored"
    by_worker = served.client.document("titles", "a")
    served.client.ingest("titles-of-the-service", long)
    by_service = served.client.document("titles-of-the-service", "a")
    for one in (by_worker, by_service):
        one.ClearField("stored_at")
    assert by_worker == by_service


def test_another_text_or_cut_replaces_and_a_cold_document_gets_its_memories(served: Served, tmp_path: Path) -> None:
    to = served.base("changes")
    file = tmp_path / "a.txt"
    file.write_text("One sentence. Another sentence.")
    (upload,) = map(Upload.of, read_documents(file.resolve(), Path("a.txt")))
    assert (upload.key, through([upload], to, tmp_path)[0].outcome) == ("a.txt", "stored")
    assert through([upload], Destination(to.address, "changes", 8), tmp_path)[0].outcome == "replaced"
    (cold,) = uploads("Not written yet.")
    upsert = pb.UpsertRequest(
        knowledge_base="changes", document=cold.item.document, memory_writing=pb.MEMORY_WRITING_LATER
    )
    served.client.ingestion.Upsert(upsert, timeout=60)
    assert through([cold], to, tmp_path)[0].outcome in ("replaced", "unchanged")  # or the service was faster
    request = pb.GetVersionsRequest(knowledge_base="changes", document_keys=["none", "k0"])
    (version,) = served.client.ingestion.GetVersions(request, timeout=60).versions
    assert (version.document_key, version.memories_written) == ("k0", True)


@pytest.mark.parametrize("apart", [0, ROWS])
def test_of_a_key_that_occurs_twice_the_last_text_is_stored_however_often(
    served: Served, tmp_path: Path, apart: int
) -> None:
    to, file = served.base(f"twice-{apart}"), tmp_path / "facts.jsonl"
    others = [{"key": f"o{n}", "text": f"Other {n}."} for n in range(apart)]
    lines = [{"key": "k", "text": "First."}, *others, {"key": "k", "text": "Last."}]
    file.write_text("\n".join(map(json.dumps, lines)))
    work = Work({str(file): file}, to, HashModel(tmp_path), Share(), 0, 1, None)
    for _ in range(3):
        outcomes = [upload.outcome for done in work.outcomes() for upload in done]
        assert len(outcomes) == len(lines)
        assert [one.text for one in served.client.document(to.knowledge_base, "k").references] == ["Last."]


def test_a_document_larger_than_one_message_is_sent_in_pieces(served: Served, tmp_path: Path) -> None:
    to, before = served.base("large"), served.encoder.encoded
    (large,) = through(uploads("Some words here. " * 45_000), to, tmp_path)
    assert (large.outcome, served.encoder.encoded) == ("stored", before)
    assert large.references > 1000


def test_workers_write_to_a_store_that_several_may_write_to(served: Served, tmp_path: Path) -> None:
    to = served.base("direct")
    first, other, last = uploads("One.", "Two.", "Three.")
    last.item.document.key = first.key
    last = Upload(first.key, last.item, "x")
    written = Write(to, HashModel(tmp_path))([first, other, last])
    settings = Settings(store=f"chdb://{tmp_path}/store")
    store = open_store(settings.store)
    base = store.create("direct", "", IDENTITY)
    store.close()
    direct = Store(to, settings)
    try:
        assert {upload.outcome for upload in direct(written)} == {"stored"}
        assert [upload.outcome for upload in direct(written[2:])] == ["unchanged"]
        stored = direct._store.document(base, first.key)
        assert [text for _, text in stored.references] == ["Three."]
        assert stored.content_hash == to.content_hash(last.item.document)
    finally:
        direct._store.close()


def test_what_no_model_can_write_fails_alone(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = HashEncoder.encode

    def refusing(self: HashEncoder, references: Sequence[str]) -> EncodedReferences:
        if any("poison" in text for text in references):
            raise RuntimeError("the model fell over")
        return encode(self, references)

    monkeypatch.setattr(HashEncoder, "encode", refusing)
    done = through(uploads("a", "poison", "c"), served.base("one-bad"), tmp_path)
    assert [upload.outcome for upload in done] == ["stored", "failed", "stored"]
    assert done[1].reason == "ENCODING_FAILED"
    named = pb.IngestItem(document=document("k" * 2000, "Its key is too long."))
    (upload,) = Write(served.base("long-key"), HashModel(tmp_path))([Upload("k", named, "x")])
    assert (upload.outcome, upload.reason) == ("failed", "INVALID_ARGUMENT")


def test_a_worker_with_another_model_and_a_missing_knowledge_base_stop_it(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ModelMismatch, match="service's model"):
        Write(Destination(served.address, "default"), HashModel(tmp_path, name="other"))
    nowhere = Destination(served.address, "nowhere")
    for stage in (Write(nowhere, HashModel(tmp_path)), Send(nowhere)):
        with pytest.raises(RemoteError, match="nowhere"):
            stage(uploads("Text."))


def write_facts(file: Path, count: int) -> Path:
    lines = [json.dumps({"key": f"k{n}", "text": f"Fact {n}. " * (1 + n % 90)}) for n in range(count)]
    file.write_text("\n".join(lines))
    return file


def test_a_killed_worker_is_started_again_and_every_document_is_there_once(served: Served, tmp_path: Path) -> None:
    facts = write_facts(tmp_path / "facts.jsonl", 300)
    model = HashModel(tmp_path, deadly="Fact 150.")
    to = served.base("killed")
    done = list(ingest_with_workers({str(facts): facts}, to, model, workers=2))
    assert (tmp_path / "died").exists()
    assert len(list(tmp_path.glob("*.worker"))) == 3, "another process took the place of the killed one"
    assert sorted(upload.key for upload in done) == sorted(f"k{n}" for n in range(300)), "each outcome is told once"
    assert {upload.outcome for upload in done} <= {"stored", "unchanged"}
    stored = served.client.counts("killed")
    assert stored == (300, sum(upload.references for upload in done))
    again = list(ingest_with_workers({str(facts): facts}, to, model, workers=1))
    assert {upload.outcome for upload in again} == {"unchanged"}
    assert served.client.counts("killed") == stored


def test_a_worker_that_always_dies_stops_the_ingestion(served: Served, tmp_path: Path) -> None:
    facts = write_facts(tmp_path / "facts.jsonl", 3)
    with pytest.raises(IngestionStopped, match="worker 0 died 4 times, the last time with exit code 3"):
        list(ingest_with_workers({str(facts): facts}, served.base("dying"), dies))


def dies(worker: int, workers: int) -> HashEncoder:
    os._exit(3)


def test_workers_with_another_model_stop_the_ingestion_with_the_reason(served: Served, tmp_path: Path) -> None:
    facts = write_facts(tmp_path / "facts.jsonl", 3)
    to = served.base("other-model")
    with pytest.raises(IngestionStopped, match="service's model"):
        list(ingest_with_workers({str(facts): facts}, to, HashModel(tmp_path, name="other")))


def test_shares_have_every_document_once_and_convert_no_file_twice(tmp_path: Path) -> None:
    write_facts(tmp_path / "facts.jsonl", 200)
    for n in range(40):
        (tmp_path / f"{n}.txt").write_text(f"Note {n}.")
    sources = {source.name: source for source in sorted(tmp_path.iterdir())}
    machines = [Share(n, 3) for n in range(3)]
    workers = [Share(n, 2).of(machine) for machine in machines for n in range(2)]
    found = [[document.key for document in share.documents(sources)] for share in workers]
    assert sorted(itertools.chain(*found)) == sorted([f"k{n}" for n in range(200)] + [f"{n}.txt" for n in range(40)])
    assert all(25 < len(keys) < 55 for keys in found), "240 documents in six shares"
    assert [[d.key for d in share.documents(sources)] for share in workers] == found, "in the same order every time"
    read = [{key for key, source in sources.items() if share.has_some_of(source, key)} for share in workers]
    assert sum(len(keys - {"facts.jsonl"}) for keys in read) == 40
    two = [set(found[2 * n] + found[2 * n + 1]) for n in range(3)]
    assert two == [{document.key for document in machine.documents(sources)} for machine in machines]


@pytest.mark.parametrize("text", ["8/8", "-1/8", "1", "a/b", "0/0", "1/2/3", ""])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="share"):
        Share.parse(text)
