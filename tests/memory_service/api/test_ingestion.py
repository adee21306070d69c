from __future__ import annotations

import grpc
import numpy as np
import pytest

from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import knowledge_bases_pb2
from tests.memory_service.encoders import DIMENSION, HashEncoder, identity_of, payload_of, vector_of
from tests.memory_service.running import Client, document, ingest_requests, reason_of, refusal

MODEL_ID = identity_of("test").model_id


def counts(client: Client, kb: str) -> tuple[int, int]:
    reply = client.bases.GetStatistics(knowledge_bases_pb2.GetStatisticsRequest(name=kb), timeout=60)
    return reply.document_count, reply.reference_count


def outcome(response: pb.IngestResponse) -> object:
    if response.WhichOneof("message") == "failed":
        return reason_of(response.failed)
    return response.acknowledged.outcome


def test_an_acknowledged_document_is_searchable_in_references_with_its_title(client: Client) -> None:
    text = " ".join(f"Sentence {n} has a few words in it." for n in range(60))
    started, ack = client.ingest("long", document("k", text, "The title", source="test"))
    assert started.started.reference_tokens == 128
    assert ack.acknowledged.outcome == pb.INGEST_OUTCOME_STORED
    assert ack.acknowledged.reference_count > 1
    stored = client.ingestion.GetDocument(
        pb.GetDocumentRequest(knowledge_base="long", document_key="k", return_text=True), timeout=10
    )
    assert stored.metadata == {"source": "test"}
    assert stored.content_hash == ack.acknowledged.content_hash
    texts = [reference.text for reference in stored.references]
    assert all(text.startswith("The title\n") and len(text.split()) <= 128 for text in texts)
    for number, reference in enumerate(stored.references):
        hit = client.retrieve("long", vector_of(reference.text)[None], k=1).results[0].hits[0]
        assert (hit.memory_id, hit.chunk_number, hit.document_key) == (reference.memory_id, number, "k")


def test_a_stream_tells_how_far_it_has_come(client: Client) -> None:
    documents = [document(f"d{n}", f"Text {n}.") for n in range(5)] + [document("empty", "")]
    answers = client.ingestion.Ingest(iter(ingest_requests("far", documents)), timeout=60)
    told = [(answer.progress.items_answered, answer.progress.items_received, answer.progress.references_written)
            for answer in answers if answer.HasField("progress")]  # fmt: skip
    assert told == sorted(told)
    assert told[-1] == (6, 6, 5)


def test_an_unchanged_document_costs_no_work_and_a_changed_one_replaces(
    client: Client, encoder: HashEncoder
) -> None:
    client.ingest("again", document("a", "First text."), document("b", "Other text."))
    before = encoder.encoded
    answers = client.ingest("again", document("a", "First text."), document("b", "New text."))[1:]
    assert [outcome(a) for a in answers] == [pb.INGEST_OUTCOME_UNCHANGED, pb.INGEST_OUTCOME_REPLACED]
    assert encoder.encoded == before + 1
    assert counts(client, "again") == (2, 2)
    hits = client.retrieve("again", vector_of("Other text.")[None], return_text=True).results[0].hits
    assert {hit.text for hit in hits} == {"First text.", "New text."}


def test_bad_documents_fail_by_name_and_the_others_are_stored(client: Client) -> None:
    answers = client.ingest(
        "mixed",
        document("good", "A good one."),
        document("empty", ""),
        document("blank", " \n\t "),
        document("large", "x" * (10 << 20)),
        document("", "No key."),
        document("k" * 2000, "Long key."),
        document("titled", "Text.", title="word " * 200),
        document("late", "Another good one."),
    )[1:]
    assert [a.acknowledged.sequence or a.failed.sequence for a in answers] == list(range(1, 9))
    stored = pb.INGEST_OUTCOME_STORED
    assert [outcome(a) for a in answers] == [
        stored, "DOCUMENT_EMPTY", "DOCUMENT_EMPTY", "DOCUMENT_TOO_LARGE",
        "INVALID_ARGUMENT", "INVALID_ARGUMENT", "INVALID_ARGUMENT", stored,
    ]  # fmt: skip
    assert counts(client, "mixed") == (2, 2)


def prepared(key: str, *references: pb.PreparedReference) -> pb.PreparedDocument:
    return pb.PreparedDocument(key=key, title="T", references=references)


def test_prepared_references_are_stored_as_sent_and_checked(client: Client) -> None:
    vector, payload = vector_of("something else"), payload_of("something else", MODEL_ID)
    foreign = payload_of("x", identity_of("another").model_id)
    whole = {"text": "t", "embedding": vector.tobytes(), "payload": payload}
    answers = client.ingest(
        "prepared",
        prepared("whole", pb.PreparedReference(**whole)),
        prepared("text only", pb.PreparedReference(text="Only text.")),
        prepared("none"),
        prepared(
            "nan", pb.PreparedReference(text="t", embedding=np.full(DIMENSION, np.nan, "<f4").tobytes())
        ),
        prepared("short", pb.PreparedReference(text="t", embedding=vector.tobytes()[:-4])),
        prepared("two", pb.PreparedReference(text="t", embedding=vector.tobytes() * 2)),
        prepared("foreign", pb.PreparedReference(**whole), pb.PreparedReference(text="t", payload=foreign)),
        prepared("cut", pb.PreparedReference(text="t", payload=payload[:-1])),
        prepared("long", pb.PreparedReference(text="word " * 129)),
    )[1:]
    stored = pb.INGEST_OUTCOME_STORED
    assert [outcome(a) for a in answers] == [
        stored, stored, "DOCUMENT_EMPTY", "VECTOR_NOT_FINITE", "WRONG_VECTOR_SIZE", "INVALID_ARGUMENT",
        "MODEL_MISMATCH", "PAYLOAD_CORRUPT", "INVALID_ARGUMENT",
    ]  # fmt: skip
    assert counts(client, "prepared") == (2, 2)
    hit = client.retrieve("prepared", vector[None], k=1).results[0].hits[0]
    assert (hit.document_key, hit.payload) == ("whole", payload)


def test_the_same_key_twice_in_a_stream_leaves_the_last(client: Client) -> None:
    versions = [document("k", f"Version {n}.") for n in (1, 2, 1, 3, 2)]
    answers = client.ingest("twice", *versions)[1:]
    assert len(answers) == 5
    assert counts(client, "twice") == (1, 1)
    hit = client.retrieve("twice", vector_of("Version 2.")[None], return_text=True).results[0].hits[0]
    assert hit.text == "Version 2."


def test_deleting_is_exact_and_repeatable(client: Client) -> None:
    client.ingest("gone", *(document(f"k{n}", f"Text {n}.") for n in range(5)))
    request = pb.DeleteRequest(knowledge_base="gone", document_keys=["k1", "k3", "none"])
    reply = client.ingestion.Delete(request, timeout=60)
    assert (reply.documents_deleted, reply.references_deleted) == (2, 2)
    assert client.ingestion.Delete(request, timeout=60).documents_deleted == 0
    assert counts(client, "gone") == (3, 3)
    hits = client.retrieve("gone", vector_of("Text 1.")[None], k=5).results[0].hits
    assert {hit.document_key for hit in hits} == {"k0", "k2", "k4"}
    with pytest.raises(grpc.RpcError) as caught:
        client.ingestion.GetDocument(
            pb.GetDocumentRequest(knowledge_base="gone", document_key="k1"), timeout=10
        )
    assert refusal(caught.value).reason == "DOCUMENT_NOT_FOUND"
    assert outcome(client.ingest("gone", document("k1", "Text 1."))[1]) == pb.INGEST_OUTCOME_STORED


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([], "INVALID_ARGUMENT"),
        (ingest_requests("x", [document("a", "b")])[1:], "INVALID_ARGUMENT"),
        (ingest_requests("missing", [document("a", "b")], create=False), "KNOWLEDGE_BASE_NOT_FOUND"),
        (ingest_requests("bad name!", [document("a", "b")]), "INVALID_ARGUMENT"),
    ],
)
def test_streams_that_do_not_begin_well_are_refused(
    client: Client, requests: list[pb.IngestRequest], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.ingestion.Ingest(iter(requests), timeout=60))
    assert refusal(caught.value).reason == reason


def test_what_came_before_a_broken_message_is_answered(client: Client) -> None:
    requests = ingest_requests("broken", [document("a", "Kept.")])
    falling = pb.IngestRequest(item=pb.IngestItem(sequence=1, document=document("b", "Text.")))
    answers = []
    with pytest.raises(grpc.RpcError) as caught:
        answers.extend(iter(client.ingestion.Ingest(iter([*requests, falling]), timeout=60)))
    assert refusal(caught.value).reason == "INVALID_ARGUMENT"
    assert counts(client, "broken") == (1, 1)
    raw = client.channel.stream_stream("/memory.v1.Ingestion/Ingest")
    messages = [
        requests[0].SerializeToString(),
        b"\x12\x08\x08\x01\x12\x04\x0a\x02\xff\xfe",
    ]  # a key that is not UTF-8
    with pytest.raises(grpc.RpcError) as caught:
        list(raw(iter(messages), timeout=60))
    assert refusal(caught.value).reason == "MALFORMED_REQUEST"
