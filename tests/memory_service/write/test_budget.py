"""Ingestion has a budget for the process and a share for a tenant; large documents delay no small ones."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2

from memory3.text.references import split
from memory_service.budget import Budget
from memory_service.threads import FairThread
from memory_service.write.document import memory_id_of
from protos.memory.v1 import ingestion_pb2 as pb
from testing.encoders import HashEncoder, identity_of, payload_of, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import (
    Client,
    Refusal,
    document,
    eventually,
    ingest_requests,
    metric,
    outcome,
    refusal,
    refused,
    running,
)

LONG = "".join(f"Sentence number {n} says that lamp {n * 7} is green. " for n in range(6000))


def upsert(client: Client, key: str, text: str, timeout_s: float = 120) -> pb.Acknowledgement:
    request = pb.UpsertRequest(
        knowledge_base="kb",
        create_if_missing=True,
        document=document(key, text),
        memory_writing=pb.MEMORY_WRITING_LATER,
    )
    return client.ingestion.Upsert(request, timeout=timeout_s).acknowledged


def in_threads(count: int, call: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, args=[n]) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.slow
def test_a_small_document_does_not_wait_behind_sixteen_large_ones(tmp_path: Path) -> None:
    class Slow(HashEncoder):
        def embed(self, references: Sequence[str]) -> np.ndarray:
            time.sleep(0.001 * len(references))
            return super().embed(references)

    with running(tmp_path, Slow(), ingest_memory_bytes=1 << 30) as (client, server):
        upsert(client, "first", "The first.")

        def large(n: int) -> None:
            upsert(client, f"large {n}", LONG * 2)

        threads = in_threads(16, large)
        eventually(lambda: server._budget._bytes_of.total() > len(LONG))
        began, waits_s = time.monotonic(), list[float]()
        for n in range(5):
            sent = time.monotonic()
            upsert(client, f"small {n}", f"Small {n}.")
            waits_s.append(time.monotonic() - sent)
        assert sum(thread.is_alive() for thread in threads) > 8, "the large ones take seconds"
        for thread in threads:
            thread.join()
        assert client.counts("kb")[0] == 22
        # A second; on a machine that has much else to do, a small part of what the large ones take.
        assert sorted(waits_s)[2] < max(1.0, 0.1 * (time.monotonic() - began)), waits_s


def test_an_abandoned_upload_frees_its_work_and_memory(tmp_path: Path) -> None:
    class Counting(HashEncoder):
        embedded = 0

        def embed(self, references: Sequence[str]) -> np.ndarray:
            time.sleep(0.001 * len(references))
            self.embedded += len(references)
            return super().embed(references)

    settings = {"ingest_memory_bytes": 1 << 30, "metrics_listen": "127.0.0.1:0"}
    encoder = Counting()
    whole = len(split(LONG * 3, "", encoder.count_tokens))
    with running(tmp_path, encoder, **settings) as (client, server):
        upsert(client, "first", "The first.")

        def abandon(n: int) -> None:
            with pytest.raises(grpc.RpcError):
                upsert(client, f"large {n}", LONG * 3, timeout_s=0.2)

        for thread in in_threads(8, abandon):
            thread.join()
        eventually(lambda: metric(server.metrics_port, "memory_service_ingesting_bytes") == 0)
        upsert(client, "small", "Small.")
        assert encoder.embedded < whole / 10, "of eight such documents"
        assert server._budget._calls_of.total() == 0
        assert client.counts("kb") == (2, 2)


def test_calls_over_the_budget_are_refused_with_a_time_to_try_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    one, other = new_key(keys, {"*": "admin"}, "one"), new_key(keys, {"*": "admin"}, "other")
    with running(tmp_path, HashEncoder(), keys=keys, max_ingest_calls=4) as (nobody, _):
        first, second = with_key(nobody.channel, one), with_key(nobody.channel, other)
        leave = threading.Event()

        def requests() -> object:
            yield from ingest_requests("kb", [])
            leave.wait(60)

        streams = [first.ingestion.Ingest(requests(), timeout=60) for _ in range(2)]
        assert all(next(stream).HasField("started") for stream in streams)
        refused_calls = [
            refused(lambda: upsert(first, "a", "Text.")),
            refused(lambda: next(first.ingestion.Ingest(iter(ingest_requests("kb", [])), timeout=60))),
        ]
        for error in refused_calls:
            assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert error.details[error_details_pb2.RetryInfo].retry_delay.ToTimedelta().total_seconds() == 1.0
        assert upsert(second, "a", "Text.").reference_count == 1, "another tenant has its share"
        leave.set()
        for stream in streams:
            list(stream)
        assert upsert(first, "a", "Text.").reference_count == 1


def test_a_document_over_the_memory_of_all_is_refused_alone_and_may_be_sent_again(tmp_path: Path) -> None:
    refusals: list[Refusal] = []
    text = LONG[: 100 << 10]
    with running(tmp_path, HashEncoder(), ingest_memory_bytes=1 << 20) as (client, _):
        assert upsert(client, "larger than the budget", LONG * 2).reference_count > 500

        def large(n: int) -> None:
            try:
                upsert(client, f"large {n}", text)
            except grpc.RpcError as error:
                refusals.append(refusal(error))

        for thread in in_threads(12, large):
            thread.join()
        assert {one.reason for one in refusals} == {"OVERLOADED"}
        assert all(error_details_pb2.RetryInfo in one.details for one in refusals)
        assert client.counts("kb")[0] == 1 + 12 - len(refusals)
        alone = client.ingest("kb", *(document(f"n{n}", text) for n in range(6)))[1:]
        assert {outcome(one) for one in alone} == {pb.INGEST_OUTCOME_STORED}, "a stream waits for its own documents"


@pytest.mark.parametrize("refused_at", range(4), ids=["first piece", "second piece", "last piece", "vectors"])
def test_a_document_in_pieces_that_finds_no_memory_is_refused_alone_and_stored_whole_when_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_at: int
) -> None:
    def piece(text: str, *, continued: bool) -> pb.PreparedDocument:
        payload = payload_of(text, identity_of("test").model_id)
        reference = pb.PreparedReference(text=text, embedding=vector_of(text).tobytes(), payload=payload)
        return pb.PreparedDocument(key="big", content_hash=b"h" * 32, references=[reference], continued=continued)

    pieces = [piece(f"Part {n}.", continued=n < 2) for n in range(3)]
    requests = ingest_requests("kb", [*pieces, document("small", "Small.")])
    for request in requests[1:4]:
        request.item.sequence = 1
    answers = iter([number != refused_at for number in range(4)])
    with running(tmp_path, HashEncoder(), warm_up=False) as (client, _):
        with monkeypatch.context() as full:
            full.setattr(Budget, "fits", lambda *_: next(answers, True))
            found = [one for one in client.ingestion.Ingest(iter(requests), timeout=60) if not one.HasField("progress")]
            assert [outcome(one) for one in found[1:]] == ["OVERLOADED", pb.INGEST_OUTCOME_STORED]
            assert found[1].failed.retryable
        list(client.ingestion.Ingest(iter(requests), timeout=60))
        assert [one.memory_id for one in client.document("kb", "big").references] == [
            memory_id_of("big", b"h" * 32, chunk, one.references[0].payload) for chunk, one in enumerate(pieces)
        ]


def test_small_work_overtakes_large_work_that_waits() -> None:
    thread, begun, done = FairThread("test"), threading.Event(), list[str]()
    first = thread.submit(0, begun.wait)
    cancelled = thread.submit(500, lambda: done.append("cancelled"))
    futures = [thread.submit(size, lambda size=size: done.append(str(size))) for size in (2000, 40, 20, 1)]
    cancelled.cancel()
    begun.set()
    for future in (first, *futures):
        future.result(30)
    assert done == ["1", "20", "40", "2000"]
    with pytest.raises(ZeroDivisionError):
        thread.submit(0, lambda: 1 / 0).result(30)
    thread.shutdown()


@pytest.mark.parametrize(("later_s", "first"), [(8.0, "small"), (29.0, "small"), (31.0, "large")])
def test_large_work_is_overtaken_for_as_long_as_sixteen_slices_take_and_not_for_ever(
    later_s: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, begun, done, now_s = FairThread("test"), threading.Event(), list[str](), [0.0]
    monkeypatch.setattr("memory_service.threads.time.monotonic", lambda: now_s[0])
    futures = [thread.submit(0, begun.wait), thread.submit(200, lambda: done.append("large"))]
    now_s[0] = later_s
    futures.append(thread.submit(1, lambda: done.append("small")))
    begun.set()
    for future in futures:
        future.result(30)
    assert done[0] == first
    thread.shutdown()


def test_a_text_without_sentences_is_split_in_time_that_grows_with_its_length() -> None:
    counted = [0]

    def count(text: str) -> int:
        counted[0] += len(text)
        return -(-len(text) // 4)

    text = "x" * 200_000
    parts = split(text, "", count)
    assert "".join(parts) == text
    assert {len(part) for part in parts[:-1]} == {512}
    assert counted[0] < 400 * len(text)
