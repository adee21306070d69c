"""Ingest and Upsert: what becomes of documents, as text and prepared, and what is refused by name."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2

from memory_service.api import ingestion as api_ingestion
from memory_service.client.documents import document_pages
from memory_service.errors import BadRequest, DocumentTooLarge, QuotaExceeded, StoreUnavailable
from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import KnowledgeBase, NewDocument, StoredDocument, Written
from memory_service.write.document import DocumentReader, text_hash_of
from protos.memory.v1 import ingestion_pb2 as pb
from testing.encoders import DIMENSION, HashEncoder, SlowEncoder, identity_of, payload_of, vector_of
from testing.programs import ROOT
from tests.memory_service.running import Client, document, ingest_requests, outcome, refusal, refused, running

MODEL_ID = identity_of("test").model_id
STORED, REPLACED = pb.INGEST_OUTCOME_STORED, pb.INGEST_OUTCOME_REPLACED
UNCHANGED = pb.INGEST_OUTCOME_UNCHANGED
LONG = " ".join(f"Sentence {n} has a few words in it." for n in range(60))


def upsert(client: Client, kb: str, one: pb.Document | pb.PreparedDocument, **more: Any) -> pb.Acknowledgement:
    kind = "prepared" if isinstance(one, pb.PreparedDocument) else "document"
    request = pb.UpsertRequest(knowledge_base=kb, create_if_missing=True, **{kind: one}, **more)
    return client.ingestion.Upsert(request, timeout=60).acknowledged


def test_an_acknowledged_document_is_searchable_in_references_with_its_title(client: Client) -> None:
    started, ack = client.ingest("long", document("k", LONG, "The title", source="test"))
    assert started.started.reference_tokens == 128
    assert ack.acknowledged.outcome == STORED
    assert ack.acknowledged.reference_count > 1
    stored = client.document("long", "k")
    assert stored.metadata == {"source": "test"}
    assert stored.content_hash == ack.acknowledged.content_hash
    texts = [reference.text for reference in stored.references]
    assert all(text.startswith("The title\n") and len(text.split()) <= 128 for text in texts)
    for number, reference in enumerate(stored.references):
        (hit,) = client.hits("long", reference.text, 1)
        assert (hit.memory_id, hit.chunk_number, hit.document_key) == (reference.memory_id, number, "k")


def test_a_stream_tells_how_far_it_has_come(client: Client) -> None:
    documents = [document(f"d{n}", f"Text {n}.") for n in range(5)] + [document("empty", "")]
    answers = client.ingestion.Ingest(iter(ingest_requests("far", documents)), timeout=60)
    told = [
        (answer.progress.items_answered, answer.progress.items_received, answer.progress.references_written)
        for answer in answers
        if answer.HasField("progress")
    ]
    assert told == sorted(told)
    assert told[-1] == (6, 6, 5)


def test_an_unchanged_document_costs_no_work_and_a_changed_one_replaces(client: Client, encoder: HashEncoder) -> None:
    client.ingest("again", document("a", "First text."), document("b", "Other text."))
    before = encoder.encoded
    answers = client.ingest("again", document("a", "First text."), document("b", "New text."))[1:]
    assert [outcome(a) for a in answers] == [UNCHANGED, REPLACED]
    assert encoder.encoded == before + 1
    assert client.counts("again") == (2, 2)
    assert {hit.text for hit in client.hits("again", "x", return_text=True)} == {"First text.", "New text."}
    first = upsert(client, "again", document("k", "First text.", "T", a="b"))
    assert (first.document_key, first.outcome, first.reference_count) == ("k", STORED, 1)
    same = upsert(client, "again", document("k", "First text.", "T", a="b"))
    assert (same.outcome, same.content_hash) == (UNCHANGED, first.content_hash)
    assert upsert(client, "again", document("k", "Second.", "T")).outcome == REPLACED
    assert outcome(client.ingest("again", document("k", "Second.", "T"))[1]) == UNCHANGED
    assert encoder.encoded == before + 3


def test_references_overlap_on_request(client: Client) -> None:
    plain = upsert(client, "cut", document("a", LONG))
    overlapping = upsert(client, "cut", document("b", LONG), overlap_tokens=40)
    assert overlapping.reference_count > plain.reference_count
    assert overlapping.content_hash != plain.content_hash


def test_bad_documents_fail_by_name_and_the_others_are_stored(client: Client) -> None:
    answers = client.ingest(
        "mixed",
        document("good", "A good one."),
        document("empty", ""),
        document("blank", " \n\t "),
        document("large", "x" * (10 << 20)),
        document("", "No key."),
        document("k" * 2000, "Long key."),
        document("late", "Another good one."),
    )[1:]
    assert [a.acknowledged.sequence or a.failed.sequence for a in answers] == list(range(1, 8))
    assert [outcome(a) for a in answers] == [
        STORED,
        "DOCUMENT_EMPTY",
        "DOCUMENT_EMPTY",
        "DOCUMENT_TOO_LARGE",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        STORED,
    ]
    assert client.counts("mixed") == (2, 2)


@pytest.mark.parametrize("words", [200, 40_000])
def test_of_a_long_title_the_beginning_stands_at_the_head_of_every_reference(client: Client, words: int) -> None:
    title = " ".join(f"word{n}" for n in range(words))
    kb = f"titled-{words}"
    (stored,) = client.ingest(kb, document("a", LONG, title))[1:]
    shown = client.document(kb, "a")
    assert title.startswith(f"{shown.title} ")
    assert shown.title.count(" ") >= 90
    assert all(one.text.startswith(f"{shown.title}\n") for one in shown.references)
    assert stored.acknowledged.content_hash == text_hash_of(title, {}, LONG)
    (again,) = client.ingest(kb, document("a", LONG, title))[1:]
    assert again.acknowledged.outcome == UNCHANGED


@pytest.mark.parametrize("title", ["w" * 5000, "水" * 5000, "long" * 200 + " words" * 200])
def test_a_title_that_is_stored_has_at_most_a_kibibyte(title: str) -> None:
    item = pb.IngestItem(document=of(title=title, text="Text."))
    read = DocumentReader(HashEncoder(), limit_bytes=1000).read(item)
    assert read is not None
    assert 500 < len(read.title.encode()) <= 1024
    assert title.startswith(read.title)


def prepared(key: str, *references: pb.PreparedReference) -> pb.PreparedDocument:
    return pb.PreparedDocument(key=key, title="T", references=references)


def test_prepared_references_are_stored_as_sent_and_checked(client: Client, encoder: HashEncoder) -> None:
    vector, payload = vector_of("something else"), payload_of("something else", MODEL_ID)
    foreign = payload_of("x", identity_of("another").model_id)
    whole = {"text": "t", "embedding": vector.tobytes(), "payload": payload}
    nan = np.full(DIMENSION, np.nan, "<f4").tobytes()
    before = encoder.encoded
    answers = client.ingest(
        "prepared",
        prepared("whole", pb.PreparedReference(**whole)),
        prepared("text only", pb.PreparedReference(text="Only text.")),
        prepared("none"),
        prepared("nan", pb.PreparedReference(text="t", embedding=nan)),
        prepared("short", pb.PreparedReference(text="t", embedding=vector.tobytes()[:-4])),
        prepared("two", pb.PreparedReference(text="t", embedding=vector.tobytes() * 2)),
        prepared("foreign", pb.PreparedReference(**whole), pb.PreparedReference(text="t", payload=foreign)),
        prepared("cut", pb.PreparedReference(text="t", payload=payload[:-1])),
        prepared("long", pb.PreparedReference(text="word " * 129)),
    )[1:]
    assert [outcome(a) for a in answers] == [
        STORED,
        STORED,
        "DOCUMENT_EMPTY",
        "VECTOR_NOT_FINITE",
        "WRONG_VECTOR_SIZE",
        "INVALID_ARGUMENT",
        "MODEL_MISMATCH",
        "PAYLOAD_CORRUPT",
        "INVALID_ARGUMENT",
    ]
    assert client.counts("prepared") == (2, 2)
    assert encoder.encoded == before + 1, "only what had no memory"
    hit = client.retrieve("prepared", vector[None], k=1).results[0].hits[0]
    assert (hit.document_key, hit.payload) == ("whole", payload)


def test_the_text_of_prepared_references_is_counted_in_bytes() -> None:
    for letter, error in (("e", ""), ("é", "800 bytes of text, at most 640")):
        references = [pb.PreparedReference(text=letter * 400)]
        item = pb.IngestItem(prepared=pb.PreparedDocument(key="k", references=references))
        read = DocumentReader(HashEncoder(), limit_bytes=10).read(item)
        assert read is not None
        assert error in str(read.error or "")
        assert bool(read.error) == bool(error)


@pytest.mark.parametrize("later", [False, True])
def test_a_document_whose_memories_are_too_large_together_is_refused_before_any_is_written(
    tmp_path: Path, later: bool
) -> None:
    encoder = HashEncoder()
    made_bytes = 4 * DIMENSION + encoder.description.payload_bytes
    settings = {"warm_up": False, "cold_background": False, "document_memory_bytes": 3 * made_bytes}
    writing = pb.MEMORY_WRITING_LATER if later else pb.MEMORY_WRITING_NOW
    with running(tmp_path, encoder, **settings) as (client, _):

        def references(count: int) -> pb.PreparedDocument:
            return prepared("k", *(pb.PreparedReference(text=f"Text {n}.") for n in range(count)))

        fits = upsert(client, "kb", references(3), memory_writing=writing)
        assert (fits.outcome, encoder.encoded) == (STORED, 0 if later else 3)
        for too_large in (references(4), document("k", LONG)):
            said = refused(lambda one=too_large: upsert(client, "kb", one, memory_writing=writing))  # type: ignore[misc]
            assert said.reason == "DOCUMENT_TOO_LARGE"
        assert encoder.encoded == (0 if later else 3)


def test_a_document_is_refused_at_the_piece_that_makes_its_memories_too_large() -> None:
    encoder = HashEncoder()
    payload = payload_of("Text.", MODEL_ID)
    reader = DocumentReader(encoder, 1000, memory_bytes=3 * (4 * DIMENSION + len(payload)))
    piece = prepared("k", *2 * [pb.PreparedReference(text="Text.", payload=payload)])
    piece.continued = True
    for references in (2, 0, 0):
        assert reader.read(pb.IngestItem(prepared=piece)) is None
        assert reader._open is not None
        assert len(reader._open.texts) == references
    piece.continued = False
    read = reader.read(pb.IngestItem(prepared=piece))
    assert read is not None
    assert isinstance(read.error, DocumentTooLarge)


CONTRACT = ROOT / "protos" / "memory" / "v1" / "ingestion.proto"


@pytest.mark.parametrize(
    ("said", "make"),
    [
        (r"Its name in the knowledge base: 1 to (\d+) bytes", lambda size: pb.Document(key="k" * size)),
        (r"hold it already\. At most (\d+) bytes", lambda size: prepared_with("t" * size)),
        (r"by it\. At most (\d+) entries", lambda count: of(metadata=dict.fromkeys(map(str, range(count)), ""))),
        (r"entries, each of at most (\d+) bytes", lambda size: of(metadata={"name": "v" * (size - 4)})),
    ],
)
def test_the_contract_names_the_limits_of_a_document(
    said: str, make: Callable[[int], pb.Document | pb.PreparedDocument]
) -> None:
    comments = re.sub(r"\s*\n\s*// ", " ", CONTRACT.read_text())
    (limit,) = map(int, re.findall(said, comments))

    def error_of(content: pb.Document | pb.PreparedDocument) -> Exception | None:
        if isinstance(content, pb.Document):
            content.text = "Text."
            item = pb.IngestItem(document=content)
        else:
            item = pb.IngestItem(prepared=content)
        read = DocumentReader(HashEncoder(), limit_bytes=1000).read(item)
        assert read is not None
        return read.error

    assert error_of(make(limit)) is None
    assert isinstance(error_of(make(limit + 1)), BadRequest)


def of(**parts: Any) -> pb.Document:
    return pb.Document(key="k", **parts)


def prepared_with(title: str) -> pb.PreparedDocument:
    return pb.PreparedDocument(key="k", title=title, references=[pb.PreparedReference(text="Text.")])


def test_a_document_larger_than_a_message_of_grpc_is_read_in_pages(tmp_path: Path) -> None:
    texts = [f"{n} " + " ".join(["w" * 500] * 120) for n in range(160)]
    large = pb.PreparedDocument(key="large", references=[pb.PreparedReference(text=text) for text in texts])
    with (
        running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s") as (client, server),
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,  # takes 4 MiB
    ):
        client.ingest("kb", large)
        stub, request = Client(channel).ingestion, pb.GetDocumentRequest(knowledge_base="kb", document_key="large")
        whole = stub.GetDocument(request, timeout=60)
        assert (len(whole.references), whole.reference_count, whole.next_page_token) == (160, 160, "")
        request.return_text = True
        pages = list(document_pages(stub, "kb", "large"))
        assert len(pages) == 4
        assert {(page.reference_count, page.content_hash) for page in pages} == {(160, whole.content_hash)}
        assert [one.text for page in pages for one in page.references] == texts
        assert [one.chunk_number for page in pages for one in page.references] == list(range(160))
        request.page_token = pages[0].next_page_token
        client.ingest("kb", document("large", "Short."))
        assert refused(lambda: stub.GetDocument(request, timeout=60)).reason == "KNOWLEDGE_BASE_CHANGED"
        for token in ("?", "MTA", "é", pages[0].next_page_token[:-4]):
            request.page_token = token
            assert refused(lambda: stub.GetDocument(request, timeout=60)).reason == "INVALID_ARGUMENT"


def test_a_page_of_a_document_reads_no_more_from_the_store_than_a_page_has(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_ingestion, "_DOCUMENT_PAGE_REFERENCES", 4)
    read, whole = list[StoredDocument](), LocalStore.document

    def counted(*arguments: Any, **more: Any) -> StoredDocument:
        read.append(whole(*arguments, **more))
        return read[-1]

    monkeypatch.setattr(LocalStore, "document", counted)
    texts = [f"Text {n}." for n in range(10)]
    client.ingest("pages", pb.PreparedDocument(key="k", references=[pb.PreparedReference(text=one) for one in texts]))
    pages = list(document_pages(client.ingestion, "pages", "k"))
    assert [one.text for page in pages for one in page.references] == texts
    assert [one.chunk_number for page in pages for one in page.references] == list(range(10))
    assert [len(document.references) for document in read] == [4, 4, 2]


def test_the_same_key_twice_in_a_stream_leaves_the_last(client: Client) -> None:
    versions = [document("k", f"Version {n}.") for n in (1, 2, 1, 3, 2)]
    assert len(client.ingest("twice", *versions)) == 1 + 5
    assert client.counts("twice") == (1, 1)
    assert client.hits("twice", "Version 2.", 1, return_text=True)[0].text == "Version 2."


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([], "INVALID_ARGUMENT"),
        (ingest_requests("x", [document("a", "b")])[1:], "INVALID_ARGUMENT"),
        (ingest_requests("missing", [document("a", "b")], create=False), "KNOWLEDGE_BASE_NOT_FOUND"),
        (ingest_requests("bad name!", [document("a", "b")]), "INVALID_ARGUMENT"),
    ],
)
def test_streams_that_begin_badly_are_refused(client: Client, requests: list[pb.IngestRequest], reason: str) -> None:
    assert refused(lambda: list(client.ingestion.Ingest(iter(requests), timeout=60))).reason == reason


def test_an_upsert_without_a_message_is_malformed(client: Client) -> None:
    call = client.channel.stream_unary("/memory.v1.Ingestion/Upsert")
    assert refused(lambda: call(iter(()), timeout=60)).reason == "MALFORMED_REQUEST"


def test_a_client_that_waits_for_an_answer_is_not_silent(tmp_path: Path) -> None:
    start, *items = ingest_requests("default", [document(f"d{n}", f"Text {n}.") for n in range(3)])
    answered, over = threading.Semaphore(0), threading.Event()

    def requests() -> Iterator[pb.IngestRequest]:
        yield start
        for item in items[:2]:
            yield item
            answered.acquire()
        over.wait()

    keys = list[str]()
    with running(tmp_path, SlowEncoder(0.9), ingest_idle_timeout_s=0.4, warm_up=False) as (client, _):
        call = client.ingestion.Ingest(requests(), timeout=60)

        def read() -> None:
            for response in call:
                if response.HasField("acknowledged"):
                    keys.append(response.acknowledged.document_key)
                    answered.release()

        with pytest.raises(grpc.RpcError) as ended:
            read()
        over.set()
    assert (keys, refusal(ended.value).reason) == (["d0", "d1"], "DEADLINE_EXCEEDED")


def test_what_came_before_a_broken_message_is_answered(client: Client) -> None:
    requests = ingest_requests("broken", [document("a", "Kept.")])
    falling = pb.IngestRequest(item=pb.IngestItem(sequence=1, document=document("b", "Text.")))
    call = client.ingestion.Ingest(iter([*requests, falling]), timeout=60)
    assert refused(lambda: list(call)).reason == "INVALID_ARGUMENT"
    assert client.counts("broken") == (1, 1)
    raw = client.channel.stream_stream("/memory.v1.Ingestion/Ingest")
    not_utf8 = b"\x12\x08\x08\x01\x12\x04\x0a\x02\xff\xfe"
    messages = [requests[0].SerializeToString(), not_utf8]
    assert refused(lambda: list(raw(iter(messages), timeout=60))).reason == "MALFORMED_REQUEST"


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

    def write_or_fail(store: LocalStore, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
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
        assert upsert(client, "kb", document("k", "Text.")).outcome == STORED


def test_one_document_that_the_store_refuses_decides_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LocalStore.write

    def write_or_fail(store: LocalStore, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        if any(one.key == "bad" for one in documents):
            raise RuntimeError("a bug")
        return write(store, base, documents)

    monkeypatch.setattr(LocalStore, "write", write_or_fail)
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}") as (client, _):
        answers = client.ingest("kb", *(document(key, f"Text {key}.") for key in ("a", "bad", "b")))[1:]
        assert [outcome(one) for one in answers] == [STORED, "INTERNAL", STORED]
