"""Retrieve: by vector and words, and by text, which the service embeds; what is wrong is named."""

import threading
from typing import Any

import google_crc32c
import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2

from memory3.text.words import query_words
from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import KnowledgeBase, Query, Retrieved
from protos.memory.v1 import models_pb2
from protos.memory.v1 import retrieval_pb2 as pb
from testing.encoders import DIMENSION, HashEncoder, identity_of, payload_of, vector_of
from tests.memory_service.running import Client, Refusal, document, refused

X = vector_of("x").tobytes()


@pytest.fixture(scope="module", autouse=True)
def _documents(client: Client) -> None:
    colours = ("red", "green", "blue")
    client.ingest("facts", *(document(f"d{n}", f"Fact number {n}.", f"T{n}", colour=colours[n % 3]) for n in range(30)))
    client.ingest("others", document("o", "Fact number 3 of others.", "T3"))


def text(number: int) -> str:
    return f"T{number}\nFact number {number}."


def ask(client: Client, kb: str = "facts", **request: Any) -> pb.RetrieveResponse:
    return client.retrieval.Retrieve(pb.RetrieveRequest(knowledge_base=kb, **request), timeout=60)


def why(client: Client, **request: Any) -> Refusal:
    return refused(lambda: ask(client, **request))


def test_the_nearest_memories_come_with_their_documents_and_payloads(client: Client, encoder: HashEncoder) -> None:
    query = vector_of(text(7))
    response = client.retrieve("facts", query[None], return_text=True)
    (result,) = response.results
    scores = np.stack([vector_of(text(n)) for n in range(30)]) @ query
    expected = np.argsort(-scores)[:5]
    assert [hit.document_key for hit in result.hits] == [f"d{n}" for n in expected]
    # The index keeps bfloat16.
    assert [hit.score for hit in result.hits] == pytest.approx(scores[expected], abs=0.01)
    best = result.hits[0]
    assert (best.title, best.chunk_number, best.text) == ("T7", 0, text(7))
    assert best.payload == payload_of(text(7), encoder.description.identity.model_id)
    assert best.payload_crc32c == google_crc32c.value(best.payload)
    assert [hit.document_key for hit in client.hits("facts", text(7), minimum_score=0.99)] == ["d7"]
    times = response.server_times
    assert 0 < times.search_us + times.fetch_us <= times.total_us


def test_the_largest_response_is_within_the_limit_that_describe_names(client: Client) -> None:
    limits = client.models.Describe(models_pb2.DescribeRequest(), timeout=60).limits
    words = " ".join(f"longword{n:04}" for n in range(60))
    client.ingest("long", *(document(f"{n:03}{'k' * 1021}", f"{n} {words}", words) for n in range(limits.k)))
    queries = np.stack([vector_of(str(n)) for n in range(limits.hits // limits.k)])
    response = client.retrieve("long", queries, k=limits.k, return_text=True)
    assert {len(result.hits) for result in response.results} == {limits.k}
    assert response.ByteSize() <= limits.response_bytes


def test_a_text_finds_what_its_vector_and_words_find(client: Client) -> None:
    texts = [text(7), "Which fact is number 12?"]
    words = [pb.QueryWords(hashes=query_words(text)) for text in texts]
    vectors = np.stack([vector_of(text) for text in texts])
    expected = client.retrieve("facts", vectors, query_words=words, return_text=True)
    assert ask(client, query_texts=texts, return_text=True).results == expected.results
    first = expected.results[0].hits[0]
    assert first.document_key == "d7"
    (hit,) = ask(client, query_texts=[text(7)], k=1, held_ids=[first.memory_id]).results[0].hits
    assert hit.held
    (hit, *_) = ask(client, query_texts=[text(7)], metadata_filter={"colour": "blue"}).results[0].hits
    assert hit.document_key != "d7"


def test_an_earlier_turn_names_the_document_that_a_follow_up_is_about(client: Client) -> None:
    def first(earlier: list[str], **weights: float) -> pb.Hit:
        words = pb.QueryWords(hashes=query_words("And that?"))
        words.earlier.extend(pb.QueryWords(hashes=query_words(turn)) for turn in earlier)
        response = client.retrieve("facts", vector_of("fact")[None], k=30, query_words=[words], **weights)
        return response.results[0].hits[0]

    nearest = first([])
    others = [f"What about T{n}?" for n in (11, 12) if nearest.document_key != f"d{n}"]
    found = first([*others, "And T13?"], title_weight=2)
    assert found.title in others[0]
    assert found.rank_score == pytest.approx(found.score + 0.75 * 2, abs=0.01)
    assert first(others, title_weight=0).document_key == nearest.document_key


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        ({"query_vectors": b""}, "WRONG_VECTOR_SIZE", "query_vectors"),
        ({"query_vectors": b"\0" * 7}, "WRONG_VECTOR_SIZE", "query_vectors"),
        ({"query_vectors": X, "dimension": 16}, "WRONG_VECTOR_SIZE", "dimension"),
        ({"query_vectors": np.full(DIMENSION, np.nan, "<f4").tobytes()}, "VECTOR_NOT_FINITE", "query_vectors"),
        ({"query_vectors": np.full(DIMENSION, np.inf, "<f4").tobytes()}, "VECTOR_NOT_FINITE", "query_vectors"),
        ({"query_vectors": np.zeros(DIMENSION, "<f4").tobytes()}, "VECTOR_NOT_FINITE", "query_vectors"),
        ({"query_vectors": X, "k": 10**6}, "INVALID_ARGUMENT", "k"),
        ({"query_vectors": X * 200, "k": 100}, "INVALID_ARGUMENT", "k"),
        ({"query_vectors": X * 300}, "INVALID_ARGUMENT", "query_vectors"),
        ({"query_vectors": X, "minimum_score": float("nan")}, "INVALID_ARGUMENT", "minimum_score"),
        ({"query_vectors": X, "maximum_drop": float("nan")}, "INVALID_ARGUMENT", "maximum_drop"),
        ({"query_vectors": X, "query_words": [pb.QueryWords()] * 2}, "INVALID_ARGUMENT", "query_words"),
        ({"query_vectors": X, "query_words": [pb.QueryWords(hashes=range(600))]}, "INVALID_ARGUMENT", "query_words"),
        (
            {"query_vectors": X, "query_words": [pb.QueryWords(earlier=[pb.QueryWords()] * 9)]},
            "INVALID_ARGUMENT",
            "query_words",
        ),
        ({"query_vectors": X, "word_weight": -1}, "INVALID_ARGUMENT", "word_weight"),
        ({"query_texts": ["a"], "title_weight": float("inf")}, "INVALID_ARGUMENT", "title_weight"),
        ({"query_texts": ["a"], "query_vectors": X}, "INVALID_ARGUMENT", "query_texts"),
        ({"query_texts": ["a"], "query_words": [pb.QueryWords(hashes=[1])]}, "INVALID_ARGUMENT", "query_texts"),
        ({"query_texts": ["a"], "dimension": 32}, "INVALID_ARGUMENT", "query_texts"),
        ({"query_texts": ["a", " \n"]}, "INVALID_ARGUMENT", "query_texts[1]"),
        ({"query_texts": ["ä" * 4097]}, "INVALID_ARGUMENT", "query_texts[0]"),
        ({"query_texts": ["a"] * 33}, "INVALID_ARGUMENT", "query_texts"),
        ({"query_texts": ["a"] * 20, "k": 100}, "INVALID_ARGUMENT", "k"),
    ],
)
def test_wrong_values_are_named_before_anything_is_embedded(
    client: Client,
    encoder: HashEncoder,
    monkeypatch: pytest.MonkeyPatch,
    request_: dict[str, Any],
    reason: str,
    field: str,
) -> None:
    monkeypatch.setattr(encoder, "embed", lambda texts: pytest.fail("embedded"))
    error = why(client, **request_)
    assert (error.code, error.reason, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)


@pytest.mark.parametrize("query", [{"query_vectors": X}, {"query_texts": ["a"]}])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model", "MODEL_MISMATCH"),
        ("codec", "CODEC_MISMATCH"),
        ("memory_format", "FORMAT_MISMATCH"),
        ("embedder", "EMBEDDER_MISMATCH"),
    ],
)
def test_another_identity_is_refused_by_name(client: Client, query: dict[str, Any], name: str, reason: str) -> None:
    other = getattr(identity_of("another"), f"{name}_id")
    error = why(client, **query, **{f"{name}_id": other})
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, reason)
    info = error.details[error_details_pb2.ErrorInfo]
    assert info.metadata == {"found": getattr(identity_of("test"), f"{name}_id"), "expected": other}


def test_an_unknown_knowledge_base_is_named(client: Client) -> None:
    error = why(client, kb="nowhere", query_vectors=X)
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")
    assert "nowhere" in error.message
    assert "facts" in error.message


@pytest.mark.parametrize("asked", [{"query_texts": ["a"]}, {"query_vectors": X, "metadata_filter": {"colour": "red"}}])
def test_texts_that_are_embedded_slowly_and_filters_hold_up_no_other_search(
    client: Client, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    retrieve, embed, going_on = LocalStore.retrieve, encoder.embed, threading.Event()

    def slow(store: LocalStore, base: KnowledgeBase, query: Query) -> Retrieved:
        if query.filter:
            going_on.wait(60)
        return retrieve(store, base, query)

    monkeypatch.setattr(LocalStore, "retrieve", slow)
    monkeypatch.setattr(encoder, "embed", lambda texts: going_on.wait(60) and embed(texts))
    request = pb.RetrieveRequest(knowledge_base="facts", **asked)
    waiting = [client.retrieval.Retrieve.future(request, timeout=60) for _ in range(4)]
    assert client.hits("facts", "a")
    assert not any(call.done() for call in waiting)
    going_on.set()
    assert all(call.result().results[0].hits for call in waiting)
