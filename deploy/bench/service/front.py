"""Servers to compare with: the same wire as the service's, before an echo or before a peer's search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import grpc
import numpy as np

from deploy.bench.processes import go_first_when_memory_ends
from deploy.bench.service.data import PAYLOAD_BYTES, Collection, K
from memory3.text.words import ranked
from memory_service.api.retrieval import response_of
from memory_service.api.server import run
from memory_service.stores.store import Found, Retrieved
from protos.memory.v1 import retrieval_pb2

METHOD = "/memory.v1.Retrieval/Retrieve"
_THREADS = 2
CANDIDATES = 50
"""Put in order by words: the service's default."""
Neighbour = tuple[int, float, str, bytes]
"""(memory id, cosine, text, payload)."""
Candidate = tuple[int, float, np.ndarray]
"""(memory id, cosine, words of its text as `text_words` makes them)."""


class Searcher(Protocol):
    """Something that finds references by vector and reads them by id. Called from several threads."""

    def search(self, vector: np.ndarray, count: int) -> Sequence[Candidate]:
        """The nearest, best first; vector: float32 [dimension]."""

    def read(self, memory_ids: Sequence[int]) -> Mapping[int, tuple[str, bytes]]:
        """Text and payload of each."""


def answer_of(searcher: Searcher, request: retrieval_pb2.RetrieveRequest) -> bytes:
    """As the service answers: the nearest by vector are put in order by words, the first k come with text and payload.

    Without words the nearest k come as they are.
    """
    k, vector = request.k or K, np.frombuffer(request.query_vectors, "<f4")
    near = searcher.search(vector, CANDIDATES if request.query_words else k)
    if request.query_words:
        words = request.query_words[0].hashes
        best = ranked(words, [score for _, score, _ in near], [found for _, _, found in near])
        near = [near[index] for index, _ in best[:k]]
    read = searcher.read([memory_id for memory_id, _, _ in near])
    return as_response([(memory_id, score, *read[memory_id]) for memory_id, score, _ in near])


def as_response(neighbours: Sequence[Neighbour]) -> bytes:
    """What the service would answer with these."""
    hits = [Found(memory_id, score, "", "", 0, 0, text) for memory_id, score, text, _ in neighbours]
    payloads = {memory_id: payload for memory_id, _, _, payload in neighbours}
    return response_of(Retrieved([hits], payloads, 0, 0)).SerializeToString()


def serve_echo(ready: Callable[[int], None], payload_bytes: int = PAYLOAD_BYTES) -> None:
    """Answers every request with five payloads without looking at it: what the wire alone costs."""
    collection = Collection(K)
    answer = as_response([(n + 1, 0.5, collection.text(n), bytes(payload_bytes)) for n in range(K)])

    async def retrieve(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return answer

    run(_serve(retrieve, None, ready))


def serve_searcher(ready: Callable[[int], None], opened: Callable[[Path], Searcher], folder: Path) -> None:
    """Answers from a peer, its search in threads as the service's is."""
    go_first_when_memory_ends()
    searcher, threads = opened(folder), ThreadPoolExecutor(_THREADS)

    async def retrieve(request: retrieval_pb2.RetrieveRequest, context: grpc.aio.ServicerContext) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(threads, answer_of, searcher, request)

    run(_serve(retrieve, retrieval_pb2.RetrieveRequest.FromString, ready))


async def _serve(behaviour: object, decode: object, ready: Callable[[int], None]) -> None:
    service, _, method = METHOD[1:].partition("/")
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)])
    handlers = {method: grpc.unary_unary_rpc_method_handler(behaviour, decode, None)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready(port)
    await server.wait_for_termination()
