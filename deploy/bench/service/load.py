"""Requests to a server: what comes back, how many a second, how long each takes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np

from deploy.bench.service.data import Collection, K, recall
from deploy.bench.service.front import METHOD
from memory3.text.words import query_words
from protos.memory.v1 import retrieval_pb2

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@dataclass
class Load:
    """What callers met. seconds: from the first call to the last answer. latencies_s: of answered calls."""

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def answered_per_s(self) -> float:
        """Throughput of successful calls."""
        return len(self.latencies_s) / self.seconds if self.seconds else 0.0


def requests_of(collection: Collection, share: int = 0, *, words: bool = True) -> list[bytes]:
    """A serialized RetrieveRequest for each query, as a device sends it: with words, for texts and payloads.

    share: one reference in so many passes the request's filter, of which no two are alike; 0 filters nothing. words:
    False asks by vector alone, of which the right answer is known.
    """
    requests = []
    for number, vector in enumerate(collection.query_vectors):
        request = retrieval_pb2.RetrieveRequest(query_vectors=vector.tobytes(), k=K, return_text=words)
        if words:
            request.query_words.add(hashes=query_words(collection.question(number)))
        if share:
            # A value that no reference has makes each filter another one: a store keeps what the last ones passed.
            request.filter.is_in.name = f"of_{share}"
            request.filter.is_in.values.extend([str(number % share), f"none {number}"])
        requests.append(request.SerializeToString())
    return requests


def filtering_requests(collection: Collection, share: int) -> Iterator[bytes]:
    """Requests whose filters nearly every reference passes, no two alike, without end: the dearest to a store."""
    template = retrieval_pb2.RetrieveRequest(query_vectors=collection.query_vectors[0].tobytes(), k=K)
    for number in itertools.count():
        template.filter.range.name = f"of_{share}"
        template.filter.range.at_least.number = number / 2**32
        yield template.SerializeToString()


def answers_of(address: str, requests: Sequence[bytes]) -> list[retrieval_pb2.RetrieveResponse]:
    """Every answer, one after the other; warms the server too."""
    with grpc.insecure_channel(address, _OPTIONS) as channel:
        call = channel.unary_unary(METHOD)
        return [retrieval_pb2.RetrieveResponse.FromString(call(request, timeout=60)) for request in requests]


def recall_of(answers: Sequence[retrieval_pb2.RetrieveResponse], exact: np.ndarray) -> float:
    """recall@5 of answers; memory ids are a reference's number and one."""
    found = np.full((len(answers), exact.shape[1]), -1, np.int64)
    for row, answer in enumerate(answers):
        for rank, hit in enumerate(answer.results[0].hits[: exact.shape[1]]):
            found[row, rank] = hit.memory_id - 1
    return recall(found, exact[: len(answers)])


def load(
    address: str, requests: Sequence[bytes], callers: int, seconds: float, background: Iterable[bytes] = ()
) -> Load:
    """`callers` devices that ask again as soon as they are answered, for some seconds; bytes are not parsed.

    background: requests of one more caller, one after the other, which are not timed.
    """
    return asyncio.run(_load(address, requests, callers, seconds, background))


async def _load(
    address: str, requests: Sequence[bytes], callers: int, seconds: float, background: Iterable[bytes]
) -> Load:
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary(METHOD)

        async def ask(number: int) -> None:
            await call(requests[number % len(requests)], timeout=60)

        async def ask_beside() -> None:
            for request in background:
                await call(request, timeout=60)

        await ask(0)  # the connection
        other = asyncio.create_task(ask_beside())
        met = await closed_loop(ask, callers, seconds)
        other.cancel()
        (failure,) = await asyncio.gather(other, return_exceptions=True)
        if isinstance(failure, grpc.aio.AioRpcError):
            met.errors[failure.code().name] += 1
        return met


async def closed_loop(call: Callable[[int], Awaitable[None]], callers: int, seconds: float) -> Load:
    """Callers that each call again as soon as they are answered; a failure is counted by its name, not timed."""
    met = Load()
    began = time.perf_counter()

    async def caller(number: int) -> None:
        while (now := time.perf_counter()) < began + seconds:
            try:
                await call(number)
                met.latencies_s.append(time.perf_counter() - now)
            except grpc.aio.AioRpcError as error:
                met.errors[error.code().name] += 1
            number += callers

    await asyncio.gather(*(caller(number) for number in range(callers)))
    met.seconds = time.perf_counter() - began
    return met
