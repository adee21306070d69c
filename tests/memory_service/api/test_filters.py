"""Typed filters over gRPC: retrieval, listing and deletion by filter; metadata and rank scores of hits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from memory_model.words import query_words
from protos.memory.v1 import ingestion_pb2, retrieval_pb2
from protos.memory.v1.filter_pb2 import Filter
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.running import Client, document, refusal, running


@pytest.fixture(scope="module", params=["file", "chdb"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("store")
    with running(folder, HashEncoder(), store=f"{request.param}://{folder}") as (client, _):
        client.ingest("kb", *documents())
        yield client


def documents() -> list[ingestion_pb2.Document]:
    """d00 to d29: colour of three, size from 0 to 29, a day; every fifth has no colour."""
    made = []
    for n in range(30):
        metadata = {"size": str(n), "day": f"2026-01-{n + 1:02}"}
        if n % 5:
            metadata["colour"] = ("red", "green", "blue")[n % 3]
        made.append(document(f"d{n:02}", f"Fact number {n}.", f"T{n}", **metadata))
    return made


def is_in(name: str, *values: str) -> Filter:
    return Filter(is_in=Filter.In(name=name, values=values))


def listed(kind: str, *filters: Filter) -> Filter:
    return Filter(**{kind: Filter.List(filters=filters)})


def size(**bounds: float) -> Filter:
    return Filter(range=Filter.Range(name="size", **{n: Filter.Bound(number=v) for n, v in bounds.items()}))


def day(**bounds: str) -> Filter:
    return Filter(range=Filter.Range(name="day", **{n: Filter.Bound(text=v) for n, v in bounds.items()}))


CASES = [
    (is_in("colour", "blue", "green"), [n for n in range(30) if n % 5 and n % 3]),
    (Filter(exists="colour"), [n for n in range(30) if n % 5]),
    (listed("none_of", Filter(exists="colour")), [0, 5, 10, 15, 20, 25]),
    (size(at_least=9, below=11), [9, 10]),
    (day(above="2026-01-28"), [28, 29]),
    (listed("all_of", size(at_most=7), listed("none_of", is_in("colour", "red"))), [0, 1, 2, 4, 5, 7]),
    (listed("any_of", size(above=28), day(at_most="2026-01-01"), is_in("colour", "none")), [0, 29]),
    (size(above=100), []),
]


@pytest.mark.parametrize(("condition", "expected"), CASES)
def test_only_what_passes_is_found_and_listed(client: Client, condition: Filter, expected: list[int]) -> None:
    keys = [f"d{n:02}" for n in expected]
    hits = client.retrieve("kb", vector_of("x")[None], k=100, filter=condition).results[0].hits
    assert sorted(hit.document_key for hit in hits) == keys
    answer = client.ingestion.ListDocuments(
        ingestion_pb2.ListDocumentsRequest(knowledge_base="kb", filter=condition), timeout=60
    )
    assert [one.document_key for one in answer.documents] == keys


def test_both_filters_of_a_request_must_pass(client: Client) -> None:
    hits = client.retrieve(
        "kb", vector_of("x")[None], k=100, metadata_filter={"colour": "red"}, filter=size(below=9)
    )
    assert sorted(hit.document_key for hit in hits.results[0].hits) == ["d03", "d06"]


def test_hits_carry_metadata_only_on_request(client: Client) -> None:
    query = vector_of("T7\nFact number 7.")[None]
    (hit,) = client.retrieve("kb", query, k=1, return_metadata=True).results[0].hits
    assert dict(hit.metadata) == {"size": "7", "day": "2026-01-08", "colour": "green"}
    (hit,) = client.retrieve("kb", query, k=1).results[0].hits
    assert not hit.metadata


def test_hits_are_ordered_by_their_rank_score(client: Client) -> None:
    query = vector_of("Fact")[None]
    for hit in client.retrieve("kb", query, k=9).results[0].hits:
        assert hit.rank_score == hit.score != 0
    words = [retrieval_pb2.QueryWords(hashes=query_words("What is fact number 7 of T7?"))]
    hits = client.retrieve("kb", query, k=30, query_words=words).results[0].hits
    scores = [hit.rank_score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(hit.rank_score > hit.score for hit in hits)
    # 0.2 for the title, and BM25 of words that only this reference has.
    (named,) = [hit for hit in hits if hit.rank_score > hit.score + 0.2]
    assert named.document_key == "d07"


def test_pages_follow_their_tokens(client: Client) -> None:
    keys: list[str] = []
    request = ingestion_pb2.ListDocumentsRequest(knowledge_base="kb", count=4, filter=Filter(exists="colour"))
    pages = 0
    while True:
        page = client.ingestion.ListDocuments(request, timeout=60)
        keys += [one.document_key for one in page.documents]
        pages += 1
        if not page.next_page_token:
            break
        assert len(page.documents) == 4
        request.page_token = page.next_page_token
    assert (keys, pages) == ([f"d{n:02}" for n in range(30) if n % 5], 6)
    older = ingestion_pb2.ListDocumentsRequest(knowledge_base="kb", after_key="d27")
    assert [one.document_key for one in client.ingestion.ListDocuments(older, timeout=60).documents] == [
        "d28",
        "d29",
    ]


@pytest.mark.parametrize(
    "more", [{"page_token": "?"}, {"page_token": "_w=="}, {"page_token": "ZDAx", "after_key": "d01"}]
)
def test_a_page_token_of_another_making_is_refused(client: Client, more: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.ingestion.ListDocuments(
            ingestion_pb2.ListDocumentsRequest(knowledge_base="kb", **more), timeout=60
        )
    refused = refusal(caught.value)
    assert refused.reason == "INVALID_ARGUMENT"
    assert "page_token" in refused.message


def test_documents_are_deleted_by_filter_and_no_others(client: Client) -> None:
    client.ingest("gone", *documents())
    request = ingestion_pb2.DeleteRequest(knowledge_base="gone", filter=is_in("colour", "red", "green"))
    answer = client.ingestion.Delete(request, timeout=60)
    left = [n for n in range(30) if not n % 5 or n % 3 == 2]
    assert (answer.documents_deleted, answer.references_deleted) == (30 - len(left), 30 - len(left))
    everything = ingestion_pb2.ListDocumentsRequest(knowledge_base="gone")
    there = [one.document_key for one in client.ingestion.ListDocuments(everything, timeout=60).documents]
    assert there == [f"d{n:02}" for n in left]
    assert client.ingestion.Delete(request, timeout=60).documents_deleted == 0


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"filter": Filter()},
        {"filter": listed("all_of")},
        {"filter": listed("none_of", listed("any_of"))},
        {"filter": is_in("colour", "red"), "document_keys": ["d01"]},
    ],
)
def test_a_deletion_that_does_not_say_what_deletes_nothing(client: Client, more: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.ingestion.Delete(ingestion_pb2.DeleteRequest(knowledge_base="kb", **more), timeout=60)
    assert refusal(caught.value).reason == "INVALID_ARGUMENT"
    answer = client.ingestion.ListDocuments(
        ingestion_pb2.ListDocumentsRequest(knowledge_base="kb"), timeout=60
    )
    assert len(answer.documents) == 30
