"""A service that answers every query with memories of random codes: for shapes whose weights are not published.

Real gRPC, real payloads of the bundle's own format with true checksums, sent in full; only searching is left out.
"""

from __future__ import annotations

import itertools
from concurrent import futures
from pathlib import Path
from typing import NoReturn

import google_crc32c
import grpc
import numpy as np

from deploy.bench.side_process import Ready
from memory_model.bundle import Bundle
from memory_model.codec.codec import ExactCodec
from memory_model.codec.payload import HEADER, MAGIC, MemoryFormat
from memory_model.config import MEMORY_FORMAT_VERSION
from protos.memory.v1 import models_pb2, models_pb2_grpc, retrieval_pb2, retrieval_pb2_grpc

MEMORIES = 64
SEND_LIMIT = ("grpc.max_send_message_length", 64 << 20)


def serve(ready: Ready, bundle_folder: Path) -> None:
    """Answer on a free port of loopback until the process is ended."""
    bundle = Bundle.open(bundle_folder)
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[SEND_LIMIT])
    retrieval_pb2_grpc.add_RetrievalServicer_to_server(_Retrieval(bundle.memory_format), server)
    models_pb2_grpc.add_ModelsServicer_to_server(_Models(bundle), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready(port)
    server.wait_for_termination()


def random_payloads(memory_format: MemoryFormat, count: int = MEMORIES) -> list[bytes]:
    """Payloads of full length with random codes, which every product codec decodes to something finite.

    An exact codec's bytes are the numbers themselves, so there they are the bytes of random numbers.
    """
    tokens = memory_format.config.memory.reference_tokens
    ids = memory_format.identity
    names = (bytes.fromhex(i)[:16] for i in (ids.model_id, ids.codec_id, ids.memory_format_id))
    header = HEADER.pack(MAGIC, MEMORY_FORMAT_VERSION, tokens, *names)
    rng, size, codec = np.random.default_rng(0), memory_format.full_bytes, memory_format.codec
    if isinstance(codec, ExactCodec):
        numbers = size // codec.dtype.itemsize
        return [header + rng.standard_normal(numbers).astype(codec.dtype).tobytes() for _ in range(count)]
    return [header + rng.bytes(size) for _ in range(count)]


class _Retrieval(retrieval_pb2_grpc.RetrievalServicer):
    """Every query gets the next k of the prepared memories, so that no two chunks read the same."""

    def __init__(self, memory_format: MemoryFormat) -> None:
        payloads = random_payloads(memory_format)
        self._k = memory_format.config.memory.memories_per_chunk
        self._hits = itertools.cycle(
            retrieval_pb2.Hit(
                memory_id=number + 1, score=0.5, document_key="random", title="random", chunk_number=number,
                payload=payload, payload_crc32c=google_crc32c.value(payload),
            )
            for number, payload in enumerate(payloads)
        )  # fmt: skip

    def Retrieve(
        self, request: retrieval_pb2.RetrieveRequest, context: grpc.ServicerContext
    ) -> retrieval_pb2.RetrieveResponse:
        """Payloads in full, whatever the client holds."""
        queries = len(request.query_vectors) // (4 * request.dimension)
        count = request.k or self._k
        results = [
            retrieval_pb2.QueryResult(hits=list(itertools.islice(self._hits, count))) for _ in range(queries)
        ]
        return retrieval_pb2.RetrieveResponse(results=results, server_times=retrieval_pb2.ServerTimes())


class _Models(models_pb2_grpc.ModelsServicer):
    """The bundle's identity."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def Describe(
        self, request: models_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> models_pb2.DescribeResponse:
        """Ids and lengths as the real service tells them."""
        ids, memory = self._bundle.identity, self._bundle.config.memory
        return models_pb2.DescribeResponse(
            model_id=ids.model_id, codec_id=ids.codec_id, memory_format_id=ids.memory_format_id,
            embedder_id=self._bundle.manifest.embedder_id, memories_per_chunk=memory.memories_per_chunk,
            reference_tokens=memory.reference_tokens, chunk_tokens=memory.chunk_tokens,
        )  # fmt: skip

    def FetchBundle(self, request: models_pb2.FetchBundleRequest, context: grpc.ServicerContext) -> NoReturn:
        """Nobody needs it here: the device has its bundle."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "this service has memories only")
        raise AssertionError("abort raises")
