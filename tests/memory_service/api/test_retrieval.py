from __future__ import annotations

import google_crc32c
import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2

from memory_model.words import query_words
from protos.memory.v1 import retrieval_pb2
from tests.memory_service.encoders import DIMENSION, HashEncoder, identity_of, payload_of, vector_of
from tests.memory_service.running import Client, document, refusal


@pytest.fixture(scope="module", autouse=True)
def _documents(client: Client) -> None:
    colours = ("red", "green", "blue")
    client.ingest(
        "facts", *(document(f"d{n}", f"Fact number {n}.", f"T{n}", colour=colours[n % 3]) for n in range(30))
    )
    client.ingest("others", document("o", "Fact number 3 of others.", "T3"))


def texts() -> list[str]:
    return [f"T{n}\nFact number {n}." for n in range(30)]


def refused(client: Client, kb: str = "facts", raw: bytes | None = None, **more: object) -> object:
    raw = vector_of("x").tobytes() if raw is None else raw
    with pytest.raises(grpc.RpcError) as caught:
        client.retrieval.Retrieve(
            retrieval_pb2.RetrieveRequest(knowledge_base=kb, query_vectors=raw, **more), timeout=10
        )
    return refusal(caught.value)


def test_the_nearest_memories_come_with_their_documents_and_payloads(
    client: Client, encoder: HashEncoder
) -> None:
    query = vector_of(texts()[7])
    response = client.retrieve("facts", query[None], return_text=True)
    (result,) = response.results
    scores = np.stack([vector_of(text) for text in texts()]) @ query
    expected = np.argsort(-scores)[:5]
    assert [hit.document_key for hit in result.hits] == [f"d{n}" for n in expected]
    assert [hit.score for hit in result.hits] == pytest.approx(
        scores[expected], abs=0.01
    )  # the index keeps bfloat16
    best = result.hits[0]
    assert (best.title, best.chunk_number, best.text) == ("T7", 0, texts()[7])
    assert best.payload == payload_of(texts()[7], encoder.description.identity.model_id)
    assert best.payload_crc32c == google_crc32c.value(best.payload)
    times = response.server_times
    assert 0 < times.search_us + times.fetch_us <= times.total_us


def test_the_words_of_a_query_decide_between_equally_near_references(client: Client) -> None:
    between = (vector_of(texts()[3]) + vector_of(texts()[4]))[None]
    for number in (3, 4):
        said = [retrieval_pb2.QueryWords(hashes=query_words(f"What is fact number {number}?"))]
        hits = client.retrieve("facts", between, k=2, query_words=said).results[0].hits
        assert [hit.document_key for hit in hits] == [f"d{number}", f"d{7 - number}"]
        near = client.retrieve("facts", between, k=2, query_words=said, maximum_drop=0.01).results[0].hits
        assert [hit.document_key for hit in near] == [f"d{number}"]
        assert hits[0].score == pytest.approx(hits[1].score, abs=0.01), "the score stays the cosine"
        assert not hits[0].HasField("text")
    assert client.retrieve("facts", between, query_words=[retrieval_pb2.QueryWords()]).results[0].hits


def test_words_of_another_number_of_queries_are_refused(client: Client) -> None:
    told = refused(client, query_words=[retrieval_pb2.QueryWords(hashes=[1])] * 2)
    assert "query_words" in str(told)
    assert "maximum_drop" in str(refused(client, maximum_drop=float("nan")))
    told = refused(client, query_words=[retrieval_pb2.QueryWords(hashes=range(600))])
    assert "512" in str(told)


def test_many_queries_get_their_own_results_and_each_payload_once(client: Client) -> None:
    query = np.stack([vector_of(texts()[1]), vector_of(texts()[2]), vector_of(texts()[1])])
    response = client.retrieve("facts", query, k=3, dimension=DIMENSION)
    assert [r.hits[0].document_key for r in response.results] == ["d1", "d2", "d1"]
    hits = [hit for result in response.results for hit in result.hits]
    with_payload = [hit.memory_id for hit in hits if hit.WhichOneof("memory") == "payload"]
    assert len(with_payload) == len(set(with_payload)) == len({hit.memory_id for hit in hits})
    assert all(hit.held for hit in response.results[2].hits)


def test_held_memories_come_without_payload(client: Client) -> None:
    first = client.retrieve("facts", vector_of(texts()[1])[None]).results[0].hits
    again = (
        client.retrieve("facts", vector_of(texts()[1])[None], held_ids=[first[0].memory_id]).results[0].hits
    )
    assert again[0].held
    assert again[0].payload == b""
    assert again[0].payload_crc32c == first[0].payload_crc32c
    assert [hit.payload for hit in again[1:]] == [hit.payload for hit in first[1:]]


def test_minimum_score_and_metadata_filter(client: Client) -> None:
    query = vector_of(texts()[4])[None]
    assert [h.document_key for h in client.retrieve("facts", query, minimum_score=0.99).results[0].hits] == [
        "d4"
    ]
    hits = client.retrieve("facts", query, k=30, metadata_filter={"colour": "blue"}).results[0].hits
    assert {hit.document_key for hit in hits} == {f"d{n}" for n in range(30) if n % 3 == 2}
    assert (
        not client.retrieve("facts", query, metadata_filter={"colour": "blue", "other": ""}).results[0].hits
    )


@pytest.mark.parametrize(
    ("raw", "more", "reason"),
    [
        (b"", {}, "WRONG_VECTOR_SIZE"),
        (b"\0" * 7, {}, "WRONG_VECTOR_SIZE"),
        (vector_of("x").tobytes(), {"dimension": 16}, "WRONG_VECTOR_SIZE"),
        (np.full(DIMENSION, np.nan, "<f4").tobytes(), {}, "VECTOR_NOT_FINITE"),
        (np.full(DIMENSION, np.inf, "<f4").tobytes(), {}, "VECTOR_NOT_FINITE"),
        (np.zeros(DIMENSION, "<f4").tobytes(), {}, "VECTOR_NOT_FINITE"),
        (None, {"k": 10**6}, "INVALID_ARGUMENT"),
        (vector_of("x").tobytes() * 200, {"k": 100}, "INVALID_ARGUMENT"),
        (None, {"minimum_score": float("nan")}, "INVALID_ARGUMENT"),
        (vector_of("x").tobytes() * 300, {}, "INVALID_ARGUMENT"),
    ],
)
def test_wrong_values_are_named(
    client: Client, raw: bytes | None, more: dict[str, object], reason: str
) -> None:
    error = refused(client, raw=raw, **more)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert error.details[error_details_pb2.BadRequest].field_violations[0].field


@pytest.mark.parametrize(
    ("name", "reason"),
    [("model", "MODEL_MISMATCH"), ("codec", "CODEC_MISMATCH"), ("memory_format", "FORMAT_MISMATCH"),
     ("embedder", "EMBEDDER_MISMATCH")],
)  # fmt: skip
def test_a_client_of_another_identity_is_refused_by_name(client: Client, name: str, reason: str) -> None:
    other = getattr(identity_of("another"), f"{name}_id")
    error = refused(client, **{f"{name}_id": other})
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, reason)
    info = error.details[error_details_pb2.ErrorInfo]
    assert info.metadata == {"found": getattr(identity_of("test"), f"{name}_id"), "expected": other}


def test_an_unknown_knowledge_base_is_named(client: Client) -> None:
    error = refused(client, kb="nowhere")
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "KNOWLEDGE_BASE_NOT_FOUND")
    assert "nowhere" in error.message
    assert "facts" in error.message


def test_bytes_that_are_no_request_are_refused_and_the_service_goes_on(client: Client) -> None:
    raw = client.channel.unary_unary("/memory.v1.Retrieval/Retrieve")
    with pytest.raises(grpc.RpcError) as caught:
        raw(b"\x0a\x02\xff\xfe", timeout=60)  # a string field that is not UTF-8; more in test_fuzz
    assert refusal(caught.value).reason == "MALFORMED_REQUEST"
    assert client.retrieve("facts", vector_of("x")[None]).results[0].hits
