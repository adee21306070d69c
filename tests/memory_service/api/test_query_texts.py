"""Retrieval by text: the service embeds it and finds what vector and words of that text find."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from memory_model.words import query_words
from protos.memory.v1 import retrieval_pb2 as pb
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.running import Client, document, refusal


@pytest.fixture(scope="module", autouse=True)
def _documents(client: Client) -> None:
    client.ingest("facts", *(document(f"d{n}", f"Fact number {n}.", f"T{n}", n=str(n)) for n in range(30)))


def by_text(client: Client, *texts: str, **more: Any) -> pb.RetrieveResponse:
    return client.retrieval.Retrieve(
        pb.RetrieveRequest(knowledge_base="facts", query_texts=texts, **more), timeout=60
    )


def test_a_text_finds_what_its_vector_and_words_find(client: Client) -> None:
    texts = ["T7\nFact number 7.", "Which fact is number 12?"]
    words = [pb.QueryWords(hashes=query_words(text)) for text in texts]
    vectors = [vector_of(text) for text in texts]
    expected = client.retrieve("facts", vectors, query_words=words, return_text=True)  # type: ignore[arg-type]
    found = by_text(client, *texts, return_text=True)
    assert found.results == expected.results
    assert [hit.document_key for hit in found.results[0].hits][:1] == ["d7"]
    assert len(found.results) == 2


def test_texts_go_with_everything_else_of_a_request(client: Client) -> None:
    first = by_text(client, "T7\nFact number 7.", k=1).results[0].hits[0]
    (hit,) = by_text(client, "T7\nFact number 7.", k=1, held_ids=[first.memory_id]).results[0].hits
    assert hit.held
    (hit,) = by_text(client, "T7\nFact number 7.", k=9, metadata_filter={"n": "8"}).results[0].hits
    assert hit.document_key == "d8"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.RetrieveRequest(query_texts=["a"], query_vectors=vector_of("a").tobytes()), "query_texts"),
        (pb.RetrieveRequest(query_texts=["a"], query_words=[pb.QueryWords(hashes=[1])]), "query_texts"),
        (pb.RetrieveRequest(query_texts=["a"], dimension=32), "query_texts"),
        (pb.RetrieveRequest(query_texts=["a", " \n"]), "query_texts[1]"),
        (pb.RetrieveRequest(query_texts=["ä" * 4097]), "query_texts[0]"),
        (pb.RetrieveRequest(query_texts=["a"] * 33), "query_texts"),
        (pb.RetrieveRequest(query_texts=["a"] * 20, k=100), "k"),
        (pb.RetrieveRequest(query_texts=["a"], minimum_score=float("nan")), "minimum_score"),
    ],
)
def test_a_request_that_is_wrong_is_refused_before_anything_is_embedded(
    client: Client,
    encoder: HashEncoder,
    monkeypatch: pytest.MonkeyPatch,
    request_: pb.RetrieveRequest,
    field: str,
) -> None:
    monkeypatch.setattr(encoder, "embed", lambda texts: pytest.fail("embedded"))
    request_.knowledge_base = "facts"
    with pytest.raises(grpc.RpcError) as caught:
        client.retrieval.Retrieve(request_, timeout=60)
    refused = refusal(caught.value)
    assert refused.reason == "INVALID_ARGUMENT"
    assert refused.details[error_details_pb2.BadRequest].field_violations[0].field == field


def test_another_model_is_refused_for_texts_too(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        by_text(client, "a", embedder_id="00" * 32)
    assert refusal(caught.value).reason == "EMBEDDER_MISMATCH"


def test_texts_that_are_embedded_slowly_do_not_hold_up_searches_by_vector(
    client: Client, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed, going_on = encoder.embed, threading.Event()
    monkeypatch.setattr(encoder, "embed", lambda texts: going_on.wait(60) and embed(texts))
    waiting = [
        client.retrieval.Retrieve.future(
            pb.RetrieveRequest(knowledge_base="facts", query_texts=["a"]), timeout=60
        )
        for _ in range(4)
    ]
    assert client.retrieve("facts", vector_of("a")[None]).results[0].hits
    assert not any(call.done() for call in waiting)
    going_on.set()
    assert all(call.result().results[0].hits for call in waiting)
