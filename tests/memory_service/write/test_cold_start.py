"""Cold start: documents are found before their memories are written, which happens when they are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import pytest

from memory_service.errors import StoreUnavailable
from memory_service.write.encoder import EncodedReferences
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2, retrieval_pb2
from tests.memory_service.encoders import HashEncoder, identity_of, payload_of, vector_of
from tests.memory_service.running import Client, document, ingest_requests, refusal, running

LATER = pb.MEMORY_WRITING_LATER
LONG = " ".join(f"Sentence {n} has a few words in it." for n in range(60))


def ingest_later(
    client: Client, kb: str, *documents: pb.Document | pb.PreparedDocument
) -> list[pb.IngestResponse]:
    requests = ingest_requests(kb, documents)
    requests[0].start.memory_writing = LATER
    answers = list(client.ingestion.Ingest(iter(requests), timeout=120))
    return [answer for answer in answers if answer.WhichOneof("message") == "acknowledged"]


def unwritten(client: Client, kb: str) -> int:
    request = knowledge_bases_pb2.GetStatisticsRequest(name=kb)
    return client.bases.GetStatistics(request, timeout=60).unwritten_document_count


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def hits_near(client: Client, text: str, k: int = 5) -> Sequence[retrieval_pb2.Hit]:
    return client.retrieve("kb", vector_of(text)[None], k=k, return_text=True).results[0].hits


@pytest.mark.parametrize("engine", ["chdb", "file"])
def test_a_memory_is_written_when_it_is_first_retrieved_and_kept(tmp_path: Path, engine: str) -> None:
    encoder = HashEncoder()
    store = f"{engine}://{tmp_path}"
    with running(
        tmp_path, encoder, warm_up=False, store=store, write_in_background=False, cold_wait_s=60
    ) as (client, _):
        acknowledged = ingest_later(client, "kb", document("a", "One."), document("b", LONG))
        assert (encoder.encoded, unwritten(client, "kb")) == (0, 2)
        (hit,) = hits_near(client, "One.", k=1)
        model_id = encoder.description.identity.model_id
        assert (hit.text, hit.payload) == ("One.", payload_of("One.", model_id))
        wait_until(lambda: unwritten(client, "kb") == 1)
        (again,) = hits_near(client, "One.", k=1)
        assert (again.memory_id, again.payload_crc32c) == (hit.memory_id, hit.payload_crc32c)
        assert encoder.encoded == 1
        # Of a long document the chunk that is asked for comes first; its id is the one it keeps.
        chunk = client.ingestion.GetDocument(
            pb.GetDocumentRequest(knowledge_base="kb", document_key="b", return_text=True), timeout=60
        )
        assert chunk.content_hash == acknowledged[1].acknowledged.content_hash
        (hit,) = hits_near(client, chunk.references[2].text, k=1)
        wait_until(lambda: unwritten(client, "kb") == 0)
        stored = client.ingestion.GetDocument(
            pb.GetDocumentRequest(knowledge_base="kb", document_key="b"), timeout=60
        )
        assert stored.references[2].memory_id == hit.memory_id
        assert stored.content_hash == chunk.content_hash


def test_memories_are_written_in_the_background_also_by_the_next_process(tmp_path: Path) -> None:
    documents = [document(f"d{n}", f"Text {n}.") for n in range(40)]
    with running(
        tmp_path, HashEncoder(), warm_up=False, store=f"file://{tmp_path}", write_in_background=False
    ) as (
        client,
        _,
    ):
        ingest_later(client, "kb", *documents)
        with pytest.raises(grpc.RpcError) as caught:
            list(
                client.bases.ExportKnowledgeBase(
                    knowledge_bases_pb2.ExportKnowledgeBaseRequest(name="kb"), timeout=60
                )
            )
        assert refusal(caught.value).reason == "MEMORIES_UNWRITTEN"
    encoder = HashEncoder()
    with running(tmp_path, encoder, warm_up=False, store=f"file://{tmp_path}") as (client, _):
        wait_until(lambda: unwritten(client, "kb") == 0)
        assert encoder.encoded == 40
        written = {payload_of(d.text, identity_of("test").model_id) for d in documents}
        wait_until(lambda: {hit.payload for hit in hits_near(client, "Text 3.", k=40)} == written)
        ingest_later(client, "kb", *documents, document("new", "New."))
        wait_until(lambda: encoder.encoded == 41 and unwritten(client, "kb") == 0)
        answers = client.ingest("kb", *documents)[1:]
        assert {answer.acknowledged.outcome for answer in answers} == {pb.INGEST_OUTCOME_UNCHANGED}


class Gated(HashEncoder):
    """Writes a memory only after it was let go; refuses what says `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        assert self.let_go.wait(120)
        if any("broken" in text for text in references):
            raise RuntimeError("a bug")
        return super().encode(references)


def test_what_is_late_is_left_out_and_a_newer_version_is_not_overwritten(tmp_path: Path) -> None:
    encoder = Gated()
    with running(tmp_path, encoder, warm_up=False, store=f"file://{tmp_path}", cold_wait_s=0.1) as (
        client,
        _,
    ):
        ingest_later(client, "kb", document("a", "Old."), document("b", "broken"))
        assert hits_near(client, "Old.") == []
        # Its vector comes with it: the model's thread is busy with the old version.
        reference = pb.PreparedReference(text="New.", embedding=vector_of("New.").tobytes())
        ingest_later(client, "kb", pb.PreparedDocument(key="a", references=[reference]))
        encoder.let_go.set()
        wait_until(lambda: [hit.text for hit in hits_near(client, "New.")] == ["New."])
        wait_until(lambda: unwritten(client, "kb") == 1)  # the broken one; it stays findable by nobody
        assert [hit.text for hit in hits_near(client, "broken")] == ["New."]
        answers = client.ingest("kb", document("a", "Newest."))
        assert answers[1].acknowledged.outcome == pb.INGEST_OUTCOME_REPLACED
        assert [hit.text for hit in hits_near(client, "New.")] == ["Newest."]


def test_the_background_goes_on_by_itself_when_the_store_takes_memories_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, refused = Gated(), 0
    with running(tmp_path, encoder, warm_up=False, store=f"file://{tmp_path}") as (client, server):
        ingest_later(client, "kb", *[document(f"d{n}", f"Text {n}.") for n in range(5)])
        assert server.store is not None
        store, write = server.store, server.store.write

        def away(*_: object) -> None:
            nonlocal refused
            refused += 1
            if refused == 2:
                monkeypatch.setattr(store, "write", write)
            raise StoreUnavailable("the disk is full")

        monkeypatch.setattr(store, "write", away)
        encoder.let_go.set()
        # Nobody asks for one of them, and no new document reminds of them.
        wait_until(lambda: unwritten(client, "kb") == 0)
    assert refused == 2


def test_a_document_stored_without_memories_is_written_by_a_stream_that_wants_them(tmp_path: Path) -> None:
    encoder = HashEncoder()
    with running(tmp_path, encoder, warm_up=False, store=f"file://{tmp_path}", write_in_background=False) as (
        client,
        _,
    ):
        first = ingest_later(client, "kb", document("a", "One."))[0].acknowledged
        again = ingest_later(client, "kb", document("a", "One."))[0].acknowledged
        assert (again.outcome, encoder.encoded) == (pb.INGEST_OUTCOME_UNCHANGED, 0)
        now = client.ingest("kb", document("a", "One."))[1].acknowledged
        assert (now.outcome, now.content_hash) == (pb.INGEST_OUTCOME_REPLACED, first.content_hash)
        assert (encoder.encoded, unwritten(client, "kb")) == (1, 0)


def test_a_knowledge_base_dropped_meanwhile_does_not_stop_the_others(tmp_path: Path) -> None:
    encoder = Gated()
    with running(tmp_path, encoder, warm_up=False, store=f"file://{tmp_path}", cold_wait_s=0.1) as (
        client,
        server,
    ):
        for kb in ("kb", "kept"):
            texts = [f"Text {n}." for n in range(40)]  # with vectors: the model is busy with the first
            references = [
                pb.PreparedReference(text=text, embedding=vector_of(text).tobytes()) for text in texts
            ]
            ingest_later(
                client, kb, *[pb.PreparedDocument(key=one.text, references=[one]) for one in references]
            )
        assert hits_near(client, "Text 39.") == []  # asked for, and the model is busy
        client.bases.DeleteKnowledgeBase(
            knowledge_bases_pb2.DeleteKnowledgeBaseRequest(name="kb"), timeout=60
        )
        encoder.let_go.set()
        wait_until(lambda: unwritten(client, "kept") == 0)
        found = client.retrieve("kept", vector_of("Text 3.")[None], k=1).results[0].hits
        assert [hit.payload for hit in found] == [payload_of("Text 3.", identity_of("test").model_id)]
        kept = server._late.progress(server.store.knowledge_base("kept"))
        assert (kept.written, kept.failed, kept.problem) == (40, 0, "")
