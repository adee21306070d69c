"""Questions to a server: what comes back, how many a second, how long each takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import numpy as np

from deploy.bench.load import Load, closed_loop
from deploy.bench.service.data import Collection, K, recall
from deploy.bench.service.front import METHOD
from memory_model.words import query_words
from protos.memory.v1 import retrieval_pb2

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def plain_requests_of(collection: Collection) -> list[bytes]:
    """A serialized RetrieveRequest for each query by vector alone, whose right answer is known."""
    return [
        retrieval_pb2.RetrieveRequest(query_vectors=vector.tobytes(), k=K).SerializeToString()
        for vector in collection.query_vectors
    ]


def requests_of(collection: Collection, share: int = 0) -> list[bytes]:
    """A serialized RetrieveRequest for each query, as a device sends it: with words, for texts and payloads.

    share: one reference in so many passes the request's filter; 0 filters nothing.
    """
    requests = []
    for number, vector in enumerate(collection.query_vectors):
        request = retrieval_pb2.RetrieveRequest(
            query_vectors=vector.tobytes(), k=K, return_text=True,
            query_words=[{"hashes": query_words(collection.question(number))}],
        )  # fmt: skip
        if share:
            request.metadata_filter[f"of_{share}"] = str(number % share)
        requests.append(request.SerializeToString())
    return requests


def answers_of(address: str, requests: Sequence[bytes]) -> list[retrieval_pb2.RetrieveResponse]:
    """Every answer, one after the other; warms the server too."""
    with grpc.insecure_channel(address, _OPTIONS) as channel:
        call = channel.unary_unary(METHOD)
        return [retrieval_pb2.RetrieveResponse.FromString(call(request, timeout=60)) for request in requests]


def recall_of(answers: Sequence[retrieval_pb2.RetrieveResponse], exact: np.ndarray) -> float:
    """recall@5 of answers; memory ids are a reference's number and one."""
    found = np.full((len(answers), exact.shape[1]), -1, np.int64)
    for row, answer in enumerate(answers):
        for place, hit in enumerate(answer.results[0].hits[: exact.shape[1]]):
            found[row, place] = hit.memory_id - 1
    return recall(found, exact[: len(answers)])


def load(address: str, requests: Sequence[bytes], callers: int, seconds: float) -> Load:
    """`callers` devices that ask again as soon as they have their answer, for some seconds; bytes are not parsed."""
    return asyncio.run(_load(address, requests, callers, seconds))


async def _load(address: str, requests: Sequence[bytes], callers: int, seconds: float) -> Load:
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary(METHOD)

        async def ask(number: int) -> None:
            await call(requests[number % len(requests)], timeout=60)

        await ask(0)  # the connection
        return await closed_loop(ask, clients=callers, seconds=seconds)
