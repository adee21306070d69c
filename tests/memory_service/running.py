"""A real server in this process, on port 0, and what tests say to it."""

import asyncio
import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from memory3.channel import details_of
from memory_service.api.server import Server
from memory_service.encoder import Encoder
from memory_service.settings import Settings
from memory_service.stores.opening import open_store
from protos.memory.v1 import (
    ingestion_pb2,
    ingestion_pb2_grpc,
    knowledge_bases_pb2,
    knowledge_bases_pb2_grpc,
    models_pb2_grpc,
    operations_pb2,
    operations_pb2_grpc,
    retrieval_pb2,
    retrieval_pb2_grpc,
)
from testing.encoders import vector_of


@dataclass
class Client:
    """Stubs on one channel. address: of the service, where a test names it."""

    channel: grpc.Channel
    address: str = ""

    def __post_init__(self) -> None:
        self.retrieval = retrieval_pb2_grpc.RetrievalStub(self.channel)
        self.ingestion = ingestion_pb2_grpc.IngestionStub(self.channel)
        self.bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(self.channel)
        self.models = models_pb2_grpc.ModelsStub(self.channel)
        self.operations = operations_pb2_grpc.OperationsStub(self.channel)

    def ingest(self, kb: str, *contents: Any, create: bool = True) -> list[ingestion_pb2.IngestResponse]:
        """Sends documents or prepared documents; returns all answers that are no progress."""
        responses = self.ingestion.Ingest(iter(ingest_requests(kb, contents, create)), timeout=1200)
        return [response for response in responses if response.WhichOneof("message") != "progress"]

    def retrieve(self, kb: str, vectors: np.ndarray, **more: Any) -> retrieval_pb2.RetrieveResponse:
        raw = np.ascontiguousarray(vectors, "<f4").tobytes()
        return self.retrieval.Retrieve(
            retrieval_pb2.RetrieveRequest(knowledge_base=kb, query_vectors=raw, **more), timeout=120
        )

    def hits(self, kb: str, text: str, k: int = 5, **more: Any) -> Sequence[retrieval_pb2.Hit]:
        """Those near to a text's vector."""
        return self.retrieve(kb, vector_of(text)[None], k=k, **more).results[0].hits

    def keys(self, kb: str) -> list[str]:
        """Of the documents of all references, in order."""
        return sorted(hit.document_key for hit in self.hits(kb, "x", k=100))

    def document(self, kb: str, key: str) -> ingestion_pb2.GetDocumentResponse:
        """With its texts, all pages as one."""
        request = ingestion_pb2.GetDocumentRequest(knowledge_base=kb, document_key=key, return_text=True)
        found = page = self.ingestion.GetDocument(request, timeout=60)
        while page.next_page_token:
            request.page_token = page.next_page_token
            page = self.ingestion.GetDocument(request, timeout=60)
            found.references.extend(page.references)
        found.ClearField("next_page_token")
        return found

    def delete(self, kb: str, *keys: str, **more: Any) -> ingestion_pb2.DeleteResponse:
        """Documents by key, or by filter."""
        request = ingestion_pb2.DeleteRequest(knowledge_base=kb, document_keys=keys, **more)
        return self.ingestion.Delete(request, timeout=60)

    def listed(self, kb: str, **more: Any) -> ingestion_pb2.ListDocumentsResponse:
        """A page of documents."""
        request = ingestion_pb2.ListDocumentsRequest(knowledge_base=kb, **more)
        return self.ingestion.ListDocuments(request, timeout=60)

    def statistics(self, kb: str) -> knowledge_bases_pb2.GetStatisticsResponse:
        """Counts and bytes."""
        return self.bases.GetStatistics(knowledge_bases_pb2.GetStatisticsRequest(name=kb), timeout=60)

    def counts(self, kb: str) -> tuple[int, int]:
        """Documents and references."""
        found = self.statistics(kb)
        return found.document_count, found.reference_count

    def export(self, kb: str, **more: Any) -> Iterator[knowledge_bases_pb2.ExportKnowledgeBaseResponse]:
        """Head and pages."""
        request = knowledge_bases_pb2.ExportKnowledgeBaseRequest(name=kb, **more)
        return iter(self.bases.ExportKnowledgeBase(request, timeout=120))

    def names(self) -> list[str]:
        """Of the knowledge bases that the caller sees."""
        listed = self.bases.ListKnowledgeBases(knowledge_bases_pb2.ListKnowledgeBasesRequest(), timeout=60)
        return [base.name for base in listed.knowledge_bases]

    def create(self, kb: str) -> str:
        """A knowledge base; its name as it is seen."""
        request = knowledge_bases_pb2.CreateKnowledgeBaseRequest(name=kb)
        return self.bases.CreateKnowledgeBase(request, timeout=60).knowledge_base.name

    def drop(self, kb: str) -> None:
        """A knowledge base with all that is in it."""
        self.bases.DeleteKnowledgeBase(knowledge_bases_pb2.DeleteKnowledgeBaseRequest(name=kb), timeout=60)


def ingest_requests(kb: str, contents: Sequence[Any], create: bool = True) -> list[ingestion_pb2.IngestRequest]:
    start = ingestion_pb2.IngestStart(knowledge_base=kb, create_if_missing=create)
    requests = [ingestion_pb2.IngestRequest(start=start)]
    for sequence, content in enumerate(contents, 1):
        kind = "prepared" if isinstance(content, ingestion_pb2.PreparedDocument) else "document"
        item = ingestion_pb2.IngestItem(sequence=sequence, **{kind: content})
        requests.append(ingestion_pb2.IngestRequest(item=item))
    return requests


def document(key: str, text: str, title: str = "", **metadata: str) -> ingestion_pb2.Document:
    return ingestion_pb2.Document(key=key, title=title, text=text, metadata=metadata)


@contextlib.contextmanager
def running(folder: Path, encoder: Encoder, **settings: Any) -> Iterator[tuple[Client, Server]]:
    """A server on a store in `folder`, stopped and closed at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    values = {"listen": "127.0.0.1:0", "store": f"file://{folder / 'store'}", "shutdown_grace_s": 5.0, **settings}
    made = Settings(**values)

    async def start() -> Server:
        server = Server(made)
        await server.start(encoder, open_store(made.store, made.store_options()))
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(300)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
            yield Client(channel), server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(300)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


@dataclass
class Refusal:
    """A refused call: its status code, and the google.rpc details by their class."""

    code: grpc.StatusCode
    message: str
    details: dict[type, Any]

    @property
    def reason(self) -> str:
        return self.details[error_details_pb2.ErrorInfo].reason

    @property
    def field(self) -> str:
        return self.details[error_details_pb2.BadRequest].field_violations[0].field


def reason_of(failed: ingestion_pb2.DocumentFailure) -> str:
    """Of a document that was refused in a stream."""
    return details_of(failed.status).reason


def outcome(response: ingestion_pb2.IngestResponse) -> object:
    """What an acknowledged document became, or why it was refused."""
    failed = response.WhichOneof("message") == "failed"
    return reason_of(response.failed) if failed else response.acknowledged.outcome


def outcomes(client: Client, *documents: tuple[str, str]) -> list[object]:
    """Of documents (key, text) that a knowledge base takes in one stream."""
    return [outcome(one) for one in client.ingest("kb", *(document(*one) for one in documents))[1:]]


def refused(call: Callable[[], Any]) -> Refusal:
    """How a call is refused, which must be."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return refusal(caught.value)


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refusal(error: grpc.RpcError) -> Refusal:
    status = rpc_status.from_call(error)
    details: dict[type, Any] = {}
    for packed in status.details if status else ():
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            detail = kind()
            if packed.Unpack(detail):
                details[kind] = detail
    return Refusal(error.code(), error.details(), details)


def ingest_later(
    client: Client, kb: str, *documents: ingestion_pb2.Document | ingestion_pb2.PreparedDocument
) -> list[ingestion_pb2.Acknowledgement]:
    """Documents whose memories the service writes when they are asked for, or in the background."""
    requests = ingest_requests(kb, documents)
    requests[0].start.memory_writing = ingestion_pb2.MEMORY_WRITING_LATER
    answers = list(client.ingestion.Ingest(iter(requests), timeout=120))
    return [answer.acknowledged for answer in answers if answer.HasField("acknowledged")]


def unwritten(client: Client, kb: str = "kb") -> int:
    """Documents of a knowledge base that have no memories yet."""
    return client.statistics(kb).unwritten_document_count


def operation(client: Client, kb: str = "kb", what: str = "write-memories") -> operations_pb2.Operation:
    request = operations_pb2.GetOperationRequest(name=f"{what}/{kb}")
    return client.operations.GetOperation(request, timeout=60).operation


def status(client: Client, service: str = "") -> int:
    """Of the health service."""
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(client.channel).Check(request, timeout=60).status)


def metric(port: int, line: str) -> float:
    """The value in the first line of Prometheus that begins so; 0 where none does."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    found = [row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(line)]
    return float(found[0]) if found else 0.0


def contents(client: Client, name: str) -> list[bytes]:
    """All memories and all documents, as bytes."""
    found, keys = [], set()
    for response in client.export(name):
        for memory in response.page.memories:
            keys.add(memory.document_key)
            memory.ClearField("vector")  # restored to float precision
            found.append(memory.SerializeToString(deterministic=True))
    for key in sorted(keys):
        shown = client.document(name, key)
        shown.ClearField("stored_at")
        found.append(shown.SerializeToString(deterministic=True))
    return found
