"""A retrieval service in this process, on a free port: answers from a list, records what it was asked, misbehaves."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import google_crc32c
import grpc
import numpy as np

from edge_client.wire.client import MemoryClient
from memory3.channel import ChannelSettings
from memory3.files.bundle import Bundle
from memory3.runtime.embedder import Embedder
from protos.memory.v1 import knowledge_bases_pb2, models_pb2, models_pb2_grpc, retrieval_pb2, retrieval_pb2_grpc
from protos.memory.v1.knowledge_bases_pb2_grpc import KnowledgeBasesServicer, add_KnowledgeBasesServicer_to_server


@dataclass
class FakeService(retrieval_pb2_grpc.RetrievalServicer, models_pb2_grpc.ModelsServicer, KnowledgeBasesServicer):
    """texts and payloads are one reference each; the rest says how to misbehave.

    before: called with a request's number, from 0, before it is answered; may wait, abort or change things.
    spoil: changes a response before it is sent.
    """

    embedder: Embedder
    texts: list[str]
    payloads: list[bytes]
    delay_s: float = 0.0
    abort: tuple[grpc.StatusCode, str] | None = None
    wrong_crc: set[int] = field(default_factory=set)
    too_few_results: bool = False
    title: str = "Title"
    before: Callable[[int, grpc.ServicerContext], None] | None = None
    spoil: Callable[[retrieval_pb2.RetrieveResponse], None] | None = None
    requests: list[retrieval_pb2.RetrieveRequest] = field(default_factory=list)
    description: models_pb2.DescribeResponse = field(default_factory=models_pb2.DescribeResponse)
    address: str = ""
    names: tuple[str, ...] = ("towns", "default", "atlas")

    def __post_init__(self) -> None:
        self.vectors = self.embedder.embed(self.texts)
        self._counting = threading.Lock()

    def Retrieve(
        self, request: retrieval_pb2.RetrieveRequest, context: grpc.ServicerContext
    ) -> retrieval_pb2.RetrieveResponse:
        with self._counting:
            number = len(self.requests)
            self.requests.append(request)
        time.sleep(self.delay_s)
        if self.before:
            self.before(number, context)
        if self.abort:
            context.abort(*self.abort)
        queries = np.frombuffer(request.query_vectors, "<f4").reshape(-1, self.embedder.dim)
        if request.query_texts:
            queries = self.embedder.embed(list(request.query_texts))
        response = retrieval_pb2.RetrieveResponse()
        sent = {memory_id - 1 for memory_id in request.held_ids}
        for query in queries[: 0 if self.too_few_results else None]:
            scores = self.vectors @ query
            result = response.results.add()
            for n in np.argsort(-scores, kind="stable")[: request.k]:
                payload = self.payloads[n]
                crc = google_crc32c.value(payload) ^ (1 if int(n) in self.wrong_crc else 0)
                hit = result.hits.add(
                    memory_id=int(n) + 1,
                    score=float(scores[n]),
                    document_key=f"doc-{n}",
                    title=f"{self.title} {n}",
                    chunk_number=0,
                    text=self.texts[n],
                    payload_crc32c=crc,
                )
                if n in sent:
                    hit.held = True
                else:
                    hit.payload = payload
                sent.add(n)
        response.server_times.total_us = 1500
        if self.spoil:
            self.spoil(response)
        return response

    def Describe(
        self, request: models_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> models_pb2.DescribeResponse:
        return self.description

    def ListKnowledgeBases(
        self, request: knowledge_bases_pb2.ListKnowledgeBasesRequest, context: grpc.ServicerContext
    ) -> knowledge_bases_pb2.ListKnowledgeBasesResponse:
        response = knowledge_bases_pb2.ListKnowledgeBasesResponse()
        for name in self.names:
            response.knowledge_bases.add(name=name)
        return response


@contextmanager
def serving(service: FakeService) -> Iterator[FakeService]:
    """Run the service on a free port of this machine while the block lasts."""
    # No diary of connections, see `edge_client.wire.channel`.
    quiet = [("grpc.enable_channelz", 0), ("grpc.max_channel_trace_event_memory_per_node", 0)]
    server = grpc.server(ThreadPoolExecutor(8), options=quiet)
    retrieval_pb2_grpc.add_RetrievalServicer_to_server(service, server)
    models_pb2_grpc.add_ModelsServicer_to_server(service, server)
    add_KnowledgeBasesServicer_to_server(service, server)
    service.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield service
    finally:
        server.stop(None).wait()


def client_of(bundle: Bundle, address: str) -> MemoryClient:
    return MemoryClient(ChannelSettings(address, attempts=1), "default", bundle.identity, bundle.manifest.embedder_id)
