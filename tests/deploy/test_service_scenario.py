"""What the service is measured with: known neighbours, payloads that tell whose they are, an echo that answers."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from deploy.bench.processes import side_process
from deploy.bench.service import data
from deploy.bench.service.data import PAYLOAD_BYTES, Collection, K, recall
from deploy.bench.service.front import serve_echo
from deploy.bench.service.load import answers_of, closed_loop, load, requests_of


def test_neighbours_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_BLOCK", 70)
    collection = Collection(references=200, dimension=16, queries=20)
    vectors = np.concatenate([block for _, block in collection.vector_blocks()])
    assert vectors.shape == (200, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    exact = np.argsort(-(collection.query_vectors @ vectors.T), axis=1, kind="stable")[:, :K]
    assert recall(collection.neighbours, exact) == 1.0
    assert recall(np.where(collection.neighbours % 2, collection.neighbours, -1), exact) < 1.0


def test_the_echo_answers_every_question_with_five_payloads() -> None:
    requests = requests_of(Collection(50, 16, 3))
    with side_process(serve_echo) as address:
        answers = answers_of(address, requests)
        measured = load(address, requests, callers=2, seconds=0.1)
    assert [len(answer.results[0].hits) for answer in answers] == [K] * 3
    assert {len(hit.payload) for hit in answers[0].results[0].hits} == {PAYLOAD_BYTES}
    assert measured.answered_per_s > 0
    assert not measured.errors


async def test_callers_wait_for_their_answers_and_failures_are_counted_not_timed() -> None:
    under_way, most, numbers = 0, 0, []

    async def call(number: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        numbers.append(number)
        await asyncio.sleep(0.001)
        under_way -= 1
        if number == 0:
            raise AioRpcError(StatusCode.UNAVAILABLE, Metadata(), Metadata())

    met = await closed_loop(call, 3, 0.05)
    assert most == 3
    assert len(numbers) == len(set(numbers)) == len(met.latencies_s) + 1
    assert met.errors == {"UNAVAILABLE": 1}
    assert met.answered_per_s == len(met.latencies_s) / met.seconds
