"""Operations: how far a cold start is, while it writes and afterwards."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from protos.memory.v1 import ingestion_pb2, operations_pb2
from tests.memory_service.encoders import HashEncoder
from tests.memory_service.running import Client, document, ingest_requests, refusal, running


def operation(client: Client, kb: str) -> operations_pb2.Operation:
    request = operations_pb2.GetOperationRequest(name=f"write-memories/{kb}")
    return client.operations.GetOperation(request, timeout=60).operation


def ingest_later(client: Client, kb: str, *texts: str) -> None:
    requests = ingest_requests(kb, [document(f"d{n}", text) for n, text in enumerate(texts)])
    requests[0].start.memory_writing = ingestion_pb2.MEMORY_WRITING_LATER
    for answer in client.ingestion.Ingest(iter(requests), timeout=60):
        assert not answer.HasField("failed")


def wait_for(client: Client, kb: str, *counts: int) -> operations_pb2.Operation:
    deadline = time.monotonic() + 60
    while True:
        found = operation(client, kb)
        progress = found.progress
        if (progress.documents_done, progress.documents_left, progress.documents_failed) == counts:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


class OneBadText(HashEncoder):
    """Cannot write memories of a text that says so."""

    def encode(self, references):  # type: ignore[no-untyped-def]
        """See Encoder."""
        if any("unwritable" in text for text in references):
            raise RuntimeError("the model fails")
        return super().encode(references)


def test_a_cold_start_is_followed_to_its_end(tmp_path: Path) -> None:
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}", write_in_background=False) as (
        client,
        _,
    ):
        ingest_later(client, "kb", *(f"Text {n}." for n in range(20)))
        found = wait_for(client, "kb", 0, 20, 0)
        assert (found.done, found.problem, found.knowledge_base) == (False, "", "kb")
        assert found.kind == operations_pb2.OPERATION_KIND_WRITE_MEMORIES
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}") as (client, _):
        assert wait_for(client, "kb", 20, 0, 0).done
        answer = client.operations.ListOperations(operations_pb2.ListOperationsRequest(), timeout=60)
        assert [one.name for one in answer.operations] == ["write-memories/default", "write-memories/kb"]
        assert all(one.done for one in answer.operations)
        one = operations_pb2.ListOperationsRequest(knowledge_base="kb")
        assert [o.knowledge_base for o in client.operations.ListOperations(one, timeout=60).operations] == [
            "kb"
        ]


def test_a_document_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with running(tmp_path, OneBadText(), store=f"file://{tmp_path}") as (client, _):
        ingest_later(client, "kb", "Text 0.", "This is unwritable.", "Text 2.")
        found = wait_for(client, "kb", 2, 1, 1)
        assert not found.done
        assert "could not be written" in found.problem
        assert "the model fails" not in found.problem, "what is inside the service stays there"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("write-memories/none", "KNOWLEDGE_BASE_NOT_FOUND"),
        ("reindex/default", "INVALID_ARGUMENT"),
        ("", "INVALID_ARGUMENT"),
    ],
)
def test_an_operation_that_is_none_is_refused(client: Client, name: str, reason: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.operations.GetOperation(operations_pb2.GetOperationRequest(name=name), timeout=60)
    assert refusal(caught.value).reason == reason
