"""What needs a server of its own."""

import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest

from memory_service.encoder import EncodedReferences
from memory_service.settings import DEFAULT_ADDRESS
from memory_service.stores.store import KnowledgeBase, Query, Retrieved
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2, retrieval_pb2
from testing.encoders import HashEncoder, vector_of
from testing.programs import ROOT
from tests.memory_service.encoders import Gated
from tests.memory_service.running import document, eventually, ingest_requests, outcome, refusal, refused, running


class Moody(HashEncoder):
    """Refuses some texts, as a model with a bug would, or gives NaN."""

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        if any("crash" in text for text in references):
            raise RuntimeError("a bug")
        encoded = super().encode(references)
        for row, text in enumerate(references):
            if "nan" in text:
                encoded.vectors[row] = np.nan
        return encoded


def test_the_port_of_a_process_before_is_gone_while_this_one_loads(tmp_path: Path) -> None:
    file, there = tmp_path / "port", list[bool]()
    file.write_text("1\n")

    class Looking(HashEncoder):
        def encode(self, references: Sequence[str]) -> EncodedReferences:
            there.append(file.exists())
            return super().encode(references)

    with running(tmp_path, Looking(), port_file=file) as (_, server):
        assert (there, file.read_text()) == ([False], f"{server.port}\n")


def test_a_document_the_model_cannot_encode_fails_alone(tmp_path: Path) -> None:
    with running(tmp_path, Moody()) as (client, _):
        documents = [document(f"d{n}", text) for n, text in enumerate(["one", "crash", "two", "nan", "three"])]
        answers = client.ingest("kb", *documents)[1:]
        assert [outcome(a) for a in answers] == [1, "ENCODING_FAILED", 1, "VECTOR_NOT_FINITE", 1]
        assert len(client.hits("kb", "one")) == 3


def test_a_connection_ends_at_its_age_and_the_next_call_makes_another(tmp_path: Path) -> None:
    ready, idle = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE
    states: list[grpc.ChannelConnectivity] = []
    with running(tmp_path, HashEncoder(), connection_age_s=0.3) as (client, _):
        client.channel.subscribe(states.append)
        client.ingest("kb", document("a", "A."))
        eventually(lambda: ready in states and states[-1] == idle)
        assert client.keys("kb") == ["a"]


def test_a_fast_client_is_held_back(tmp_path: Path) -> None:
    """While the encoder is at work, the service and the connection hold a part of what a client would send."""
    text, offered = "word " * (50 << 10), 1024  # 256 MiB: more than any window of HTTP/2 holds
    sent, over = 0, threading.Event()

    def requests() -> Iterator[pb.IngestRequest]:
        nonlocal sent
        yield ingest_requests("kb", [])[0]
        for number in range(1, offered + 1):
            yield pb.IngestRequest(item=pb.IngestItem(sequence=number, document=document("d", text)))
            sent = number
        over.set()

    encoder = Gated()
    with running(tmp_path, encoder, ingest_batch_references=4, warm_up=False) as (client, _):
        call = client.ingestion.Ingest(requests(), timeout=300)
        next(call)
        before = -1
        while (sent == 0 or sent != before) and not over.is_set():  # until nothing moves
            before = sent
            over.wait(1)
        assert sent < offered
        call.cancel()
        encoder.let_go.set()


def test_waiting_retrievals_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, HashEncoder(), max_waiting_retrievals=1) as (client, server):
        assert server.store is not None
        asked, answer, retrieve = threading.Event(), threading.Event(), server.store.retrieve

        def slow(base: KnowledgeBase, query: Query) -> Retrieved:
            asked.set()
            assert answer.wait(300)
            return retrieve(base, query)

        monkeypatch.setattr(server.store, "retrieve", slow)
        request = retrieval_pb2.RetrieveRequest(knowledge_base="default", query_vectors=vector_of("x").tobytes())
        first = client.retrieval.Retrieve.future(request, timeout=60)
        assert asked.wait(60)
        assert refused(lambda: client.retrieval.Retrieve(request, timeout=60)).reason == "OVERLOADED"
        answer.set()
        assert first.result(60).results


def test_a_name_that_is_looked_up_holds_up_no_other_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, HashEncoder()) as (client, server):
        assert server.store is not None
        answer, find = threading.Event(), server.store.knowledge_base

        def slow(name: str) -> KnowledgeBase:
            assert name != "unknown" or answer.wait(300)
            return find(name)

        monkeypatch.setattr(server.store, "knowledge_base", slow)
        request = retrieval_pb2.RetrieveRequest(knowledge_base="unknown", query_vectors=vector_of("x").tobytes())
        unknown = client.retrieval.Retrieve.future(request, timeout=60)
        client.ingest("kb", document("a", "A."))
        assert client.hits("kb", "A.")
        assert not unknown.done()
        answer.set()
        assert refusal(unknown.exception()).reason == "KNOWLEDGE_BASE_NOT_FOUND"
        client.drop("kb")  # known before, and gone
        assert refused(lambda: client.hits("kb", "A.")).reason == "KNOWLEDGE_BASE_NOT_FOUND"


def test_a_knowledge_base_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    with running(tmp_path, HashEncoder("old")) as (old, _):
        old.ingest("kb", document("a", "Text."))
    with running(tmp_path, HashEncoder("new")) as (new, _):
        listed = new.bases.ListKnowledgeBases(knowledge_bases_pb2.ListKnowledgeBasesRequest(), timeout=60)
        states = {base.name: base.state for base in listed.knowledge_bases}
        assert states["kb"] == knowledge_bases_pb2.KNOWLEDGE_BASE_STATE_MISMATCHED
        for call in (lambda: new.hits("kb", "x"), lambda: new.ingest("kb", document("b", "t"))):
            error = refused(call)
            assert error.reason == "MODEL_MISMATCH"
            assert "'kb'" in error.message
        new.drop("kb")
        assert new.ingest("kb", document("a", "Text."))[1].acknowledged.outcome == 1


PAGE = ROOT / "docs" / "wire.md"


def test_the_example_writes_and_finds_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}") as (_, server):
        assert f'"{DEFAULT_ADDRESS}"' in example, "it calls the service as it is started by default"
        exec(example.replace(DEFAULT_ADDRESS, f"127.0.0.1:{server.port}"), {})
    assert "benin: Benin\nBenin has 13 million people.\n" in capsys.readouterr().out
