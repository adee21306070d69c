"""Typed filters over gRPC: retrieval, listing and deletion by filter; metadata and rank scores of hits."""

from collections.abc import Iterator
from typing import Any

import pytest

from memory3.text.words import query_words
from protos.memory.v1 import ingestion_pb2, retrieval_pb2
from protos.memory.v1.filter_pb2 import Filter
from testing.encoders import HashEncoder
from tests.memory_service.filters import joined, within
from tests.memory_service.running import Client, document, refused, running


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


def size(**bounds: float) -> Filter:
    return Filter(range=Filter.Range(name="size", **{n: Filter.Bound(number=v) for n, v in bounds.items()}))


def test_both_filters_of_a_request_must_pass(client: Client) -> None:
    hits = client.hits("kb", "x", 100, metadata_filter={"colour": "red"}, filter=size(below=9))
    assert sorted(hit.document_key for hit in hits) == ["d03", "d06"]
    assert not client.hits("kb", "x", metadata_filter={"colour": "red", "other": ""})


def test_a_metadata_filter_is_no_larger_than_any_other(client: Client) -> None:
    value = "x" * (65536 - len("colour"))
    assert not client.hits("kb", "x", metadata_filter={"colour": value})
    too_large = refused(lambda: client.hits("kb", "x", metadata_filter={"colour": f"{value}x"}))
    assert (too_large.reason, too_large.field) == ("INVALID_ARGUMENT", "metadata_filter")


def test_hits_carry_metadata_only_on_request(client: Client) -> None:
    (hit,) = client.hits("kb", "T7\nFact number 7.", 1, return_metadata=True)
    assert dict(hit.metadata) == {"size": "7", "day": "2026-01-08", "colour": "green"}
    (hit,) = client.hits("kb", "T7\nFact number 7.", 1)
    assert not hit.metadata


def test_hits_are_ordered_by_their_rank_score(client: Client) -> None:
    assert all(hit.rank_score == hit.score != 0 for hit in client.hits("kb", "Fact", 9))
    words = [retrieval_pb2.QueryWords(hashes=query_words("What is fact number 7 of T7?"))]
    hits = client.hits("kb", "Fact", 30, query_words=words)
    scores = [hit.rank_score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(hit.rank_score > hit.score for hit in hits)
    # 0.2 for the title, and BM25 of words that only this reference has.
    (named,) = [hit for hit in hits if hit.rank_score > hit.score + 0.2]
    assert named.document_key == "d07"
    near = client.hits("kb", "Fact", 30, query_words=words, maximum_drop=0.01)
    assert [hit.document_key for hit in near] == [hits[0].document_key]
    assert client.hits("kb", "Fact", query_words=[retrieval_pb2.QueryWords()])


def test_pages_follow_their_tokens(client: Client) -> None:
    page = client.listed("kb", count=4, filter=Filter(exists="colour"))
    pages = [page]
    while page.next_page_token:
        page = client.listed("kb", count=4, filter=Filter(exists="colour"), page_token=page.next_page_token)
        pages.append(page)
    keys = [one.document_key for page in pages for one in page.documents]
    assert keys == [f"d{n:02}" for n in range(30) if n % 5]
    assert {len(page.documents) for page in pages} == {4}
    assert [one.document_key for one in client.listed("kb", after_key="d27").documents] == ["d28", "d29"]
    for wrong in ({"page_token": "?"}, {"page_token": "_w=="}, {"page_token": "ZDAx", "after_key": "d01"}):
        error = refused(lambda wrong=wrong: client.listed("kb", **wrong))  # type: ignore[misc]
        assert (error.reason, error.field) == ("INVALID_ARGUMENT", "page_token")


def test_documents_are_deleted_by_filter_and_no_others(client: Client) -> None:
    client.ingest("gone", *documents())
    condition = within("colour", ["red", "green"])
    answer = client.delete("gone", filter=condition)
    left = [n for n in range(30) if not n % 5 or n % 3 == 2]
    assert (answer.documents_deleted, answer.references_deleted) == (30 - len(left), 30 - len(left))
    assert [one.document_key for one in client.listed("gone").documents] == [f"d{n:02}" for n in left]
    assert client.delete("gone", filter=condition).documents_deleted == 0


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"filter": Filter()},
        {"filter": joined("none_of", joined("any_of"))},
        {"filter": within("colour", ["red"]), "document_keys": ["d01"]},
    ],
)
def test_a_deletion_that_does_not_say_what_deletes_nothing(client: Client, more: dict[str, Any]) -> None:
    request = ingestion_pb2.DeleteRequest(knowledge_base="kb", **more)
    assert refused(lambda: client.ingestion.Delete(request, timeout=60)).reason == "INVALID_ARGUMENT"
    assert len(client.listed("kb").documents) == 30
