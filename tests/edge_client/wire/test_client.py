from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from edge_client.wire.channel import RECEIVE_LIMIT_BYTES, ChannelSettings
from edge_client.wire.client import QUERIES_PER_CALL, Answer, MemoryClient
from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService


def arguments(tiny: Bundle, address: str, **more: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    place = ChannelSettings(address, attempts=more.pop("attempts", 1))
    name = more.pop("knowledge_base", "atlas")
    return (place, name, tiny.identity, tiny.manifest.embedder_id), {"deadline_s": 20.0, **more}


def retrieve(tiny: Bundle, address: str, vectors: np.ndarray, **more: Any) -> Answer:
    """One call by a client of its own."""
    options = {
        name: more.pop(name)
        for name in ("deadline_s", "attempts", "minimum_score", "knowledge_base", "payload_bytes")
        if name in more
    }
    positional, named = arguments(tiny, address, **options)
    client = MemoryClient(*positional, **named)
    try:
        return client.retrieve(vectors, **more)
    finally:
        client.close()


@pytest.fixture
def vectors(tiny: Bundle) -> np.ndarray:
    return tiny.embedder().embed(TEXTS)


@pytest.fixture
def client(tiny: Bundle, service: FakeService) -> Iterator[MemoryClient]:
    positional, named = arguments(tiny, service.address)
    client = MemoryClient(*positional, **named)
    yield client
    client.close()


@pytest.mark.parametrize(("payload_bytes", "most"), [(0, QUERIES_PER_CALL), (RECEIVE_LIMIT_BYTES // 3, 2)])
def test_many_queries_are_cut_into_requests_whose_answers_can_come_and_joined_in_order(
    tiny: Bundle, service: FakeService, vectors: np.ndarray, payload_bytes: int, most: int
) -> None:
    many = np.concatenate([vectors] * 5)
    answer = retrieve(tiny, service.address, many, k=1, payload_bytes=payload_bytes)
    assert [hits[0].document_key for hits in answer.hits] == [f"doc-{n}" for n in range(len(TEXTS))] * 5
    sizes = [len(r.query_vectors) // (4 * r.dimension) for r in service.requests]
    assert max(sizes) == most
    assert sum(sizes) == len(many)


def test_several_knowledge_bases_are_asked_at_once_and_read_as_one(
    tiny: Bundle, service: FakeService, vectors: np.ndarray
) -> None:
    alone = retrieve(tiny, service.address, vectors[:2], k=3)
    answer = retrieve(tiny, service.address, vectors[:2], k=3, knowledge_base="atlas, firm,atlas")
    assert sorted(r.knowledge_base for r in service.requests) == ["atlas", "atlas", "firm"]
    found = [[hit.memory_id for hit in hits] for hits in answer.hits]
    assert found == [[hit.memory_id for hit in hits] for hits in alone.hits], "both have the same: each is read once"
    assert {hit.knowledge_base for hits in answer.hits for hit in hits} == {"atlas"}
    carrying = [hit.memory_id for hits in answer.hits for hit in hits if hit.payload]
    assert sorted(carrying) == sorted({hit.memory_id for hits in answer.hits for hit in hits})
    with pytest.raises(InvalidInput, match="has no name"):
        retrieve(tiny, service.address, vectors, k=1, knowledge_base="atlas,,firm")


def test_an_unreachable_service_is_asked_again_within_the_deadline(
    tiny: Bundle, service: FakeService, vectors: np.ndarray
) -> None:
    def refuse_once(number: int, context: grpc.ServicerContext) -> None:
        if number == 0:
            context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

    service.before = refuse_once
    assert retrieve(tiny, service.address, vectors[:1], k=1, attempts=3).hits[0]
    assert len(service.requests) == 2


def test_questions_that_are_none_are_refused_before_they_are_sent(
    client: MemoryClient, service: FakeService, vectors: np.ndarray
) -> None:
    wrong = vectors[:1].copy()
    wrong[0, 0] = np.nan
    for bad in (wrong, vectors[0], vectors[:0]):
        with pytest.raises(InvalidInput):
            client.retrieve(bad, k=1)
    with pytest.raises(InvalidInput):
        client.retrieve(vectors[:2], k=1, words=[[1]])
    assert service.requests == []
