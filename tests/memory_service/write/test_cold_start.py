"""Cold start: documents are found before their memories are written, which happens when they are asked for.

Also Operations: how far it is.
"""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from memory_service.errors import StoreUnavailable
from memory_service.stores.local import knowledge_base
from memory_service.stores.local.index import VectorIndex
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import operations_pb2, retrieval_pb2
from testing.encoders import HashEncoder, identity_of, payload_of, vector_of
from tests.memory_service.encoders import Gated
from tests.memory_service.running import (
    Client,
    document,
    eventually,
    ingest_later,
    ingest_requests,
    operation,
    reason_of,
    refused,
    running,
    unwritten,
)

LONG = " ".join(f"Sentence {n} has a few words in it." for n in range(60))
MODEL_ID = identity_of("test").model_id


def with_vector(key: str, text: str) -> pb.PreparedDocument:
    """Its vector comes with it: the model's thread may be busy."""
    reference = pb.PreparedReference(text=text, embedding=vector_of(text).tobytes())
    return pb.PreparedDocument(key=key, references=[reference])


def texts(client: Client, near: str) -> list[str]:
    return [hit.text for hit in client.hits("kb", near, return_text=True)]


def progress(client: Client, kb: str = "kb") -> tuple[int, int, int]:
    found = operation(client, kb).progress
    return found.documents_done, found.documents_left, found.documents_failed


@pytest.mark.parametrize("engine", ["chdb", "file"])
def test_a_memory_is_written_when_it_is_first_retrieved_before_all_others_and_kept(tmp_path: Path, engine: str) -> None:
    encoder = Gated()
    settings = {"store": f"{engine}://{tmp_path}", "warm_up": False, "cold_wait_s": 60}
    with running(tmp_path, encoder, **settings) as (client, _):
        others = [document(f"d{n}", f"Text {n}.") for n in range(100)]
        acknowledged = ingest_later(client, "kb", *others, document("long", LONG))
        chunk = client.document("kb", "long")
        assert chunk.content_hash == acknowledged[-1].content_hash
        third = chunk.references[2].text
        asked = threading.Thread(target=lambda: hits.extend(client.hits("kb", third, 1, return_text=True)))
        hits: list[object] = []
        asked.start()
        while asked.is_alive():  # a batch that was under way, then what is asked for
            encoder.once.release()
            asked.join(0.2)
        (hit,) = hits
        assert (hit.text, hit.payload) == (third, payload_of(third, MODEL_ID))  # type: ignore[attr-defined]
        assert unwritten(client) > 50
        encoder.let_go.set()
        eventually(lambda: unwritten(client) == 0)
        stored = client.document("kb", "long")
        assert stored.references[2].memory_id == hit.memory_id  # type: ignore[attr-defined]
        assert stored.content_hash == chunk.content_hash
        assert encoder.encoded == 100 + len(stored.references), "each once"


def test_the_next_process_goes_on_and_its_operation_tells_how_far_it_is(tmp_path: Path) -> None:
    documents, stuck = [document(f"d{n}", f"Text {n}.") for n in range(40)], Gated()
    store = f"file://{tmp_path}"
    with running(tmp_path, stuck, warm_up=False, store=store) as (client, server):
        stuck.stopping = server._draining.is_set
        ingest_later(client, "kb", *documents)
        found = operation(client)
        assert (progress(client), found.done, found.problem, found.knowledge_base) == ((0, 40, 0), False, "", "kb")
        assert found.kind == operations_pb2.OPERATION_KIND_WRITE_MEMORIES
        assert refused(lambda: list(client.export("kb"))).reason == "MEMORIES_UNWRITTEN"
    assert 0 < stuck.encoded < 40, "the batch at hand"
    encoder = HashEncoder()
    with running(tmp_path, encoder, warm_up=False, store=store) as (client, _):
        eventually(lambda: unwritten(client) == 0)
        assert operation(client).done
        every = client.operations.ListOperations(operations_pb2.ListOperationsRequest(), timeout=60)
        names = [
            f"{what}/{kb}" for what in ("reindex", "rewrite-memories", "write-memories") for kb in ("default", "kb")
        ]
        assert [one.name for one in every.operations] == names
        written = {payload_of(one.text, MODEL_ID) for one in documents}
        assert {hit.payload for hit in client.hits("kb", "Text 3.", 40)} == written
        assert encoder.encoded == 40 - stuck.encoded
        ingest_later(client, "kb", *documents, document("new", "New."))
        eventually(lambda: encoder.encoded == 41 - stuck.encoded and unwritten(client) == 0)
        answers = client.ingest("kb", *documents)[1:]
        assert {answer.acknowledged.outcome for answer in answers} == {pb.INGEST_OUTCOME_UNCHANGED}


def test_what_is_late_is_left_out_and_a_newer_version_is_not_overwritten(tmp_path: Path) -> None:
    encoder = Gated()
    settings = {"store": f"file://{tmp_path}", "warm_up": False, "cold_wait_s": 0.1}
    with running(tmp_path, encoder, **settings) as (client, _):
        ingest_later(client, "kb", document("a", "Old."), document("b", "broken"))
        assert texts(client, "Old.") == []
        ingest_later(client, "kb", with_vector("a", "New."))
        encoder.let_go.set()
        eventually(lambda: texts(client, "New.") == ["New."])
        eventually(lambda: progress(client)[1:] == (1, 1))  # the broken one; it stays findable by nobody
        problem = operation(client).problem
        assert "could not be written" in problem
        assert "a bug" not in problem, "what is inside the service stays there"
        assert texts(client, "broken") == ["New."]
        answers = client.ingest("kb", document("a", "Newest."))
        assert answers[1].acknowledged.outcome == pb.INGEST_OUTCOME_REPLACED
        assert texts(client, "New.") == ["Newest."]


def test_a_hit_gets_the_memory_of_its_own_version_while_that_before_is_being_written(tmp_path: Path) -> None:
    encoder, found = Gated(), list[retrieval_pb2.Hit]()
    settings = {"store": f"file://{tmp_path}", "warm_up": False, "cold_wait_s": 60}

    def ask(client: Client, text: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: found.extend(client.hits("kb", text, return_text=True)))
        thread.start()
        time.sleep(0.2)
        return thread

    with running(tmp_path, encoder, **settings) as (client, _):
        ingest_later(client, "kb", document("a", "Old."))
        old = ask(client, "Old.")
        new_texts = ["New one.", "New two.", "New three."]
        new = [pb.PreparedReference(text=text, embedding=vector_of(text).tobytes()) for text in new_texts]
        ingest_later(client, "kb", pb.PreparedDocument(key="a", references=new))
        asked = [old, ask(client, "New three.")]
        encoder.let_go.set()
        for thread in asked:
            thread.join()
        assert [hit.text for hit in found if hit.text == "Old."] in ([], ["Old."])
        assert sorted(hit.text for hit in found if hit.text != "Old.") == sorted(new_texts)
        assert all(hit.payload == payload_of(hit.text, MODEL_ID) for hit in found)
        eventually(lambda: unwritten(client) == 0)


def test_the_background_goes_on_when_the_store_takes_memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, refusals = Gated(), 0
    with running(tmp_path, encoder, warm_up=False, store=f"file://{tmp_path}") as (client, server):
        ingest_later(client, "kb", *[document(f"d{n}", f"Text {n}.") for n in range(5)])
        assert server.store is not None
        store, write = server.store, server.store.write

        def away(*_: object) -> None:
            nonlocal refusals
            refusals += 1
            if refusals == 2:
                monkeypatch.setattr(store, "write", write)
            raise StoreUnavailable("the disk is full")

        monkeypatch.setattr(store, "write", away)
        encoder.let_go.set()
        # Nobody asks for one of them, and no new document reminds of them.
        eventually(lambda: unwritten(client) == 0)
    assert refusals == 2


def test_a_knowledge_base_dropped_meanwhile_does_not_stop_the_others(tmp_path: Path) -> None:
    encoder = Gated()
    settings = {"store": f"file://{tmp_path}", "warm_up": False, "cold_wait_s": 0.1}
    with running(tmp_path, encoder, **settings) as (client, _):
        for kb in ("kb", "kept"):
            ingest_later(client, kb, *[with_vector(f"Text {n}.", f"Text {n}.") for n in range(40)])
        assert texts(client, "Text 39.") == []  # asked for, and the model is busy
        client.drop("kb")
        encoder.let_go.set()
        eventually(lambda: unwritten(client, "kept") == 0)
        (hit,) = client.hits("kept", "Text 3.", 1)
        assert hit.payload == payload_of("Text 3.", MODEL_ID)
        eventually(lambda: progress(client, "kept") == (40, 0, 0))  # which is counted after it is stored
        assert operation(client, "kept").problem == ""


def test_an_index_that_is_built_anew_is_an_operation_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, add = threading.Event(), VectorIndex.add

    def held(index: VectorIndex, rows: np.ndarray, vectors: np.ndarray) -> None:
        if threading.current_thread().name == "index-builder":
            let_go.wait(60)
        add(index, rows, vectors)

    monkeypatch.setattr(VectorIndex, "add", held)
    monkeypatch.setattr(knowledge_base, "SAVE_ROWS", 8)
    with running(tmp_path, HashEncoder(), warm_up=False, store=f"file://{tmp_path}/store") as (client, _):
        client.ingest("kb", *(document(f"d{n}", f"Text {n}.") for n in range(40)))
        assert operation(client, what="reindex").done
        for number in range(30):
            client.delete("kb", f"d{number}")
        found = operation(client, what="reindex")
        assert (found.kind, found.done) == (operations_pb2.OPERATION_KIND_REINDEX, False)
        assert found.progress.references_done + found.progress.references_left == 10
        let_go.set()
        eventually(lambda: operation(client, what="reindex").done)
        assert {hit.document_key for hit in client.hits("kb", "Text 35.", 40)} == {f"d{n}" for n in range(30, 40)}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("write-memories/none", "KNOWLEDGE_BASE_NOT_FOUND"),
        ("reindex/none", "KNOWLEDGE_BASE_NOT_FOUND"),
        ("write-memory/default", "INVALID_ARGUMENT"),
        ("", "INVALID_ARGUMENT"),
    ],
)
def test_an_operation_that_is_none_is_refused(client: Client, name: str, reason: str) -> None:
    request = operations_pb2.GetOperationRequest(name=name)
    assert refused(lambda: client.operations.GetOperation(request, timeout=60)).reason == reason


@pytest.mark.parametrize("later", [False, True])
def test_a_half_written_prepared_document_is_refused_alone(client: Client, later: bool) -> None:
    written = pb.PreparedReference(text="First.", payload=payload_of("First.", MODEL_ID))
    half = pb.PreparedDocument(key="half", references=[written, pb.PreparedReference(text="Second.")])
    neighbours = [document(f"n{n}", f"Neighbour {n}.") for n in range(4)]
    requests = ingest_requests(f"half-{later}", [*neighbours[:2], half, *neighbours[2:]])
    requests[0].start.memory_writing = pb.MEMORY_WRITING_LATER if later else pb.MEMORY_WRITING_NOW
    answers = [one for one in client.ingestion.Ingest(iter(requests), timeout=120) if not one.HasField("progress")][1:]
    refusals = [reason_of(one.failed) for one in answers if one.HasField("failed")]
    assert refusals == (["INVALID_ARGUMENT"] if later else [])  # written now, what is missing is made
    assert len(answers) == 5
