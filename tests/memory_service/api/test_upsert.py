"""Upsert: one document in one call, answered as a stream answers it, refused as a stream refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from memory_service.errors import BadRequest, QuotaExceeded, StoreUnavailable
from memory_service.stores import KnowledgeBase, NewDocument, Written
from memory_service.stores.local.store import LocalStore
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2
from tests.memory_service.encoders import HashEncoder, identity_of, payload_of, vector_of
from tests.memory_service.running import Client, Refusal, document, refusal, running

MODEL_ID = identity_of("test").model_id


def upsert(
    client: Client, kb: str, one: pb.Document | pb.PreparedDocument, **more: Any
) -> pb.Acknowledgement:
    kind = "prepared" if isinstance(one, pb.PreparedDocument) else "document"
    request = pb.UpsertRequest(knowledge_base=kb, create_if_missing=True, **{kind: one}, **more)
    return client.ingestion.Upsert(request, timeout=60).acknowledged


def refused(call: Callable[[], object]) -> Refusal:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return refusal(caught.value)


def test_a_document_is_stored_replaced_and_left_unchanged(client: Client, encoder: HashEncoder) -> None:
    first = upsert(client, "one", document("k", "First text.", "T", a="b"))
    assert (first.document_key, first.outcome, first.reference_count) == ("k", pb.INGEST_OUTCOME_STORED, 1)
    (hit,) = client.retrieve("one", vector_of("T\nFirst text.")[None], k=1).results[0].hits
    assert hit.document_key == "k"
    before = encoder.encoded
    again = upsert(client, "one", document("k", "First text.", "T", a="b"))
    assert (again.outcome, again.content_hash) == (pb.INGEST_OUTCOME_UNCHANGED, first.content_hash)
    assert encoder.encoded == before
    assert upsert(client, "one", document("k", "Second.", "T")).outcome == pb.INGEST_OUTCOME_REPLACED
    by_stream = client.ingest("one", document("k", "Second.", "T"))[1]
    assert by_stream.acknowledged.outcome == pb.INGEST_OUTCOME_UNCHANGED


def test_a_prepared_document_keeps_its_vectors_and_memories(client: Client, encoder: HashEncoder) -> None:
    reference = pb.PreparedReference(
        text="Ready.", embedding=vector_of("elsewhere").tobytes(), payload=payload_of("Ready.", MODEL_ID)
    )
    before = encoder.encoded
    upsert(client, "ready", pb.PreparedDocument(key="p", references=[reference]))
    assert encoder.encoded == before
    (hit,) = client.retrieve("ready", vector_of("elsewhere")[None], k=1).results[0].hits
    assert (hit.document_key, hit.payload) == ("p", reference.payload)


def test_memories_may_be_written_later_and_references_overlap(client: Client) -> None:
    text = " ".join(f"Sentence {n} has a few words in it." for n in range(60))
    plain = upsert(client, "cut", document("a", text))
    overlapping = upsert(
        client, "cut", document("b", text), overlap_tokens=40, memory_writing=pb.MEMORY_WRITING_LATER
    )
    assert overlapping.reference_count > plain.reference_count
    assert overlapping.content_hash != plain.content_hash


def test_a_refused_document_is_an_error_with_its_details(client: Client) -> None:
    error = refused(lambda: upsert(client, "no", document("k", "  ")))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "DOCUMENT_EMPTY")
    assert error.details[error_details_pb2.BadRequest].field_violations[0].field == "text"
    wrong = pb.PreparedReference(text="x", payload=payload_of("x", identity_of("other").model_id))
    error = refused(lambda: upsert(client, "no", pb.PreparedDocument(key="k", references=[wrong])))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_MISMATCH")
    missing = pb.UpsertRequest(knowledge_base="missing", document=document("k", "Text."))
    assert refused(lambda: client.ingestion.Upsert(missing, timeout=60)).reason == "KNOWLEDGE_BASE_NOT_FOUND"
    nothing = pb.UpsertRequest(knowledge_base="no")
    assert refused(lambda: client.ingestion.Upsert(nothing, timeout=60)).reason == "INVALID_ARGUMENT"
    told = knowledge_bases_pb2.GetStatisticsRequest(name="no")
    assert client.bases.GetStatistics(told, timeout=60).document_count == 0


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (StoreUnavailable("the store is away"), True),
        (QuotaExceeded("the tenant is full", limit=3), False),
        (BadRequest("no such value", field="text"), False),
        (RuntimeError("a bug"), False),
    ],
)
def test_a_failure_says_whether_the_document_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, retryable: bool
) -> None:
    failing = [error, error]
    write = LocalStore.write

    def write_or_fail(
        store: LocalStore, base: KnowledgeBase, documents: Sequence[NewDocument]
    ) -> list[Written]:
        if failing:
            raise failing.pop()
        return write(store, base, documents)

    monkeypatch.setattr(LocalStore, "write", write_or_fail)
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}") as (client, _):
        failed = client.ingest("kb", document("k", "Text."))[1].failed
        assert failed.retryable == retryable
        details = {detail.TypeName(): detail for detail in failed.status.details}
        assert ("google.rpc.RetryInfo" in details) == retryable
        info = error_details_pb2.ErrorInfo()
        assert details["google.rpc.ErrorInfo"].Unpack(info)
        told = refused(lambda: upsert(client, "kb", document("k", "Text.")))
        assert (told.code.value[0], told.message) == (failed.status.code, failed.status.message)
        assert told.details[error_details_pb2.ErrorInfo] == info
        assert (error_details_pb2.RetryInfo in told.details) == retryable
        assert upsert(client, "kb", document("k", "Text.")).outcome == pb.INGEST_OUTCOME_STORED
