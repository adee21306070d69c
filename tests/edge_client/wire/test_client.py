"""Calls: many queries, several knowledge bases read as one, and what is sent again."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest

from edge_client.retrieval import Hit, RetrievalResult, merged
from edge_client.wire.client import QUERIES_PER_CALL, KnowledgeBaseInfo, MemoryClient
from memory3.channel import RECEIVE_LIMIT_BYTES, ChannelSettings
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.text.words import query_words
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService


@pytest.fixture
def client_of(tiny: Bundle, service: FakeService) -> Iterator[Callable[..., MemoryClient]]:
    """Makes clients of the service, which are closed with the test."""
    with ExitStack() as stack:

        def made(knowledge_base: str = "atlas", attempts: int = 1, **options: Any) -> MemoryClient:
            channel = ChannelSettings(service.address, attempts=attempts)
            ids = tiny.identity, tiny.manifest.embedder_id
            return stack.enter_context(closing(MemoryClient(channel, knowledge_base, *ids, deadline_s=20.0, **options)))

        yield made


@pytest.fixture
def vectors(tiny: Bundle) -> np.ndarray:
    return tiny.embedder().embed(TEXTS)


@pytest.mark.parametrize(("payload_bytes", "most"), [(0, QUERIES_PER_CALL), (RECEIVE_LIMIT_BYTES // 3, 2)])
def test_many_queries_are_cut_into_requests_whose_answers_can_come_and_joined_in_order(
    client_of: Callable[..., MemoryClient], service: FakeService, vectors: np.ndarray, payload_bytes: int, most: int
) -> None:
    many = np.concatenate([vectors] * 5)
    answer = client_of(payload_bytes=payload_bytes).retrieve(many, k=1)
    assert [hits[0].document_key for hits in answer.hits] == [f"doc-{n}" for n in range(len(TEXTS))] * 5
    sizes = [len(r.query_vectors) // (4 * r.dimension) for r in service.requests]
    assert max(sizes) == most
    assert sum(sizes) == len(many)


def test_several_knowledge_bases_are_asked_at_once_and_read_as_one(
    client_of: Callable[..., MemoryClient], service: FakeService, vectors: np.ndarray
) -> None:
    alone = client_of().retrieve(vectors[:2], k=3)
    answer = client_of("atlas, firm,atlas").retrieve(vectors[:2], k=3)
    assert sorted(r.knowledge_base for r in service.requests) == ["atlas", "atlas", "firm"]
    found = [[hit.memory_id for hit in hits] for hits in answer.hits]
    assert found == [[hit.memory_id for hit in hits] for hits in alone.hits], "both have the same: each is read once"
    assert {hit.knowledge_base for hits in answer.hits for hit in hits} == {"atlas"}
    carrying = [hit.memory_id for hits in answer.hits for hit in hits if hit.payload]
    assert sorted(carrying) == sorted({hit.memory_id for hits in answer.hits for hit in hits})
    with pytest.raises(InvalidInput, match="has no name"):
        client_of("atlas,,firm").retrieve(vectors, k=1)


def test_finding_out_which_names_the_service_has_takes_its_time_from_the_call(
    client_of: Callable[..., MemoryClient], vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, now, given = client_of(own_names=lambda: ["atlas"]), [0.0], list[float]()

    def listed(timeout_s: float) -> list[KnowledgeBaseInfo]:
        given.append(timeout_s)
        now[0] += 2.0
        return [KnowledgeBaseInfo("atlas", "", "ready", "", "", "")]

    def sent(requests: object, timeout_s: float, cancellation: object) -> NoReturn:
        given.append(timeout_s)
        raise InterruptedError

    monkeypatch.setattr("edge_client.wire.client.time.monotonic", lambda: now[0])
    monkeypatch.setattr(client, "knowledge_bases", listed)
    monkeypatch.setattr(client, "_sent", sent)
    with pytest.raises(InterruptedError):
        client.retrieve(vectors, k=1, timeout_s=3.0)
    assert given == [3.0, 1.0]


def test_an_unreachable_service_is_asked_again_within_the_deadline(
    client_of: Callable[..., MemoryClient], service: FakeService, vectors: np.ndarray
) -> None:
    def refuse_once(number: int, context: grpc.ServicerContext) -> None:
        if number == 0:
            context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

    service.before = refuse_once
    assert client_of(attempts=3).retrieve(vectors[:1], k=1).hits[0]
    assert len(service.requests) == 2


def test_questions_that_are_none_are_refused_before_they_are_sent(
    client_of: Callable[..., MemoryClient], service: FakeService, vectors: np.ndarray
) -> None:
    client, wrong = client_of(), vectors[:1].copy()
    wrong[0, 0] = np.nan
    for bad in (wrong, vectors[0], vectors[:0]):
        with pytest.raises(InvalidInput):
            client.retrieve(bad, k=1)
    with pytest.raises(InvalidInput):
        client.retrieve(vectors[:2], k=1, words=[[1]])
    assert service.requests == []


def hit(
    base: str, memory_id: int, score: float, *, text: str | None = None, title: str = "", payload: bytes = b""
) -> Hit:
    return Hit(memory_id, score, f"d{memory_id}", title, 0, text, payload, 0, not payload, base)


def test_words_decide_between_knowledge_bases_as_they_do_within_one() -> None:
    words = query_words("What is the capital of Benin?")
    atlas = RetrievalResult(
        ((hit("atlas", 1, 0.50, title="Benin", text="Benin\nCapital: Porto-Novo", payload=b"1"),),), 1.0
    )
    firm = RetrievalResult(
        ((hit("firm", 2, 0.55, title="Handbook", text="Handbook\nLeave: 31 days", payload=b"2"),),), 2.0
    )
    [best] = merged([firm, atlas], 5, [words]).hits
    assert [(h.memory_id, h.knowledge_base) for h in best] == [(1, "atlas")], "what is named leaves others far below"
    [by_cosine] = merged([firm, atlas], 5).hits
    assert [h.memory_id for h in by_cosine] == [2, 1]


def test_a_document_that_two_knowledge_bases_have_is_read_once() -> None:
    mine = RetrievalResult(
        ((hit("mine", 1, 0.5, text="Code 1", payload=b"1"), hit("mine", 3, 0.4, text="Code 3", payload=b"3")),)
    )
    yours = RetrievalResult(((hit("yours", 2, 0.5, text="Code 1", payload=b"2"),),))
    [found] = merged([mine, yours], 5).hits
    assert [(h.memory_id, h.payload) for h in found] == [(1, b"1"), (3, b"3")], "as the first one's"
