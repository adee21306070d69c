"""Recall finds the same memories whichever way they come, and says by name what went wrong on the way."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import google_crc32c
import grpc
import numpy as np
import pytest

from edge_client.errors import Cancellation
from edge_client.recall.embedding import QueryEmbedder
from edge_client.recall.outcome import MemoryRead, Recall, named_apart
from edge_client.recall.recaller import Recaller
from edge_client.retrieval import RetrievalResult
from edge_client.wire.client import MemoryClient
from memory3.codec.codec import ExactCodec
from memory3.codec.payload import HEADER, ExplicitMemory, MemoryFormat
from memory3.errors import CorruptFile
from memory3.files.bundle import Bundle
from protos.memory.v1 import retrieval_pb2
from tests.edge_client.fake_service import FakeService, client_of
from tests.edge_client.tiny_bundle import tiny_config

LONG_S = 20.0
QUERY = "What is the code of Lima?"


def recaller_of(bundle: Bundle, address: str | None, **options: object) -> Recaller:
    client = client_of(bundle, address) if address else None
    return Recaller(QueryEmbedder(bundle.embedder()), client, bundle.memory_format, **options)  # type: ignore[arg-type]


@pytest.fixture
def recaller(tiny: Bundle, service: FakeService) -> Iterator[Recaller]:
    opened = recaller_of(tiny, service.address)
    yield opened
    opened.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a service waits at; open when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def ids(recall: Recall) -> list[int]:
    return [r.memory_id for r in recall.read if not r.refused]


def equal(one: Recall, other: Recall) -> bool:
    return len(one.memories) == len(other.memories) and all(
        np.array_equal(a.keys, b.keys) and np.array_equal(a.values, b.values) and a.tokens == b.tokens
        for a, b in zip(one.memories, other.memories, strict=True)
    )


# What comes and what is held


def test_what_is_held_is_named_and_not_sent_again(recaller: Recaller, service: FakeService) -> None:
    responses: list[retrieval_pb2.RetrieveResponse] = []
    service.spoil = responses.append
    (first,), (second,) = recaller.recall([QUERY]), recaller.recall([QUERY])
    assert set(service.requests[1].held_ids) == set(ids(first))
    assert not any(hit.payload for hit in responses[1].results[0].hits)
    assert (second.state, all(r.held for r in second.read), equal(first, second)) == ("held", True, True)


def test_what_the_cache_lets_go_while_the_service_answers_is_not_lost(recaller: Recaller, service: FakeService) -> None:
    (first,) = recaller.recall([QUERY])
    service.before = lambda *_: [recaller.cache.forget(i) for i in ids(first)]  # type: ignore[func-returns-value]
    (second,) = recaller.recall([QUERY])
    assert (second.state, equal(first, second)) == ("held", True)


# One memory is wrong: the others are read


def wrong_payload(recaller: Recaller, service: FakeService, memories: list[ExplicitMemory], what: str) -> bytes:
    """A payload with a checksum that is right and something else that is not."""
    config, model_id, codec = tiny_config(), recaller.memory_format.identity.model_id, ExactCodec(8)
    if what == "model":
        return MemoryFormat(config, "77" * 32, codec).encode(memories[:1])[0]
    if what == "codec":
        return MemoryFormat(config, model_id, ExactCodec(8, dtype="float16")).encode(memories[:1])[0]
    good = service.payloads[0]
    return {
        "format": good[: HEADER.size - 16] + bytes(16) + good[HEADER.size :],
        "half": good[:-100],
        "noise": np.random.default_rng(0).bytes(5000),
        "short": b"x",
        "NaN": good[:-4] + np.float32(np.nan).tobytes(),
        "infinity": good[:-4] + np.float32(np.inf).tobytes(),
    }[what]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("checksum", "DAMAGED_MEMORY"),
        ("said to be held", "DAMAGED_MEMORY"),
        ("model", "MODEL_MISMATCH"),
        ("codec", "CODEC_MISMATCH"),
        ("format", "FORMAT_MISMATCH"),
        ("half", "CORRUPT_FILE"),
        ("noise", "CORRUPT_FILE"),
        ("short", "CORRUPT_FILE"),
        ("NaN", "DAMAGED_MEMORY"),
        ("infinity", "DAMAGED_MEMORY"),
    ],
)
def test_a_wrong_memory_is_refused_by_name_and_the_others_are_read(
    recaller: Recaller, service: FakeService, written: list[ExplicitMemory], what: str, reason: str
) -> None:
    def spoil(response: retrieval_pb2.RetrieveResponse) -> None:
        hit = response.results[0].hits[2]
        if what == "checksum":
            hit.payload_crc32c ^= 1
        elif what == "said to be held":
            hit.held = True  # one of two: the payload goes
        else:
            hit.payload = wrong_payload(recaller, service, written, what)
            hit.payload_crc32c = google_crc32c.value(hit.payload)

    service.spoil = spoil
    (found,) = recaller.recall([QUERY])
    assert [r.refused.split(":")[0] for r in found.read] == [reason if n == 2 else "" for n in range(5)]
    assert (len(found.memories), found.state, found.error) == (4, "fetched", "")
    service.spoil = None
    (healed,) = recaller.recall([QUERY])
    assert [r.held for r in healed.read] == [n != 2 for n in range(5)], "it was not kept"
    assert len(healed.memories) == 5


def test_a_held_memory_with_another_checksum_is_fetched_anew(recaller: Recaller, service: FakeService) -> None:
    def spoil(response: retrieval_pb2.RetrieveResponse) -> None:
        response.results[0].hits[0].payload_crc32c ^= 1

    (first,) = recaller.recall([QUERY])
    service.spoil = spoil
    (second,) = recaller.recall([QUERY])
    assert [bool(r.refused) for r in second.read] == [True, False, False, False, False]
    service.spoil = None
    (third,) = recaller.recall([QUERY])
    assert (third.state, equal(third, first)) == ("fetched", True)


def test_a_memory_named_twice_is_read_once(recaller: Recaller, service: FakeService) -> None:
    def spoil(response: retrieval_pb2.RetrieveResponse) -> None:
        hits = response.results[0].hits
        hits[1].CopyFrom(hits[0])

    service.spoil = spoil
    (found,) = recaller.recall([QUERY])
    assert found.read[1].refused.startswith("DUPLICATE_HIT")
    assert len(found.memories) == len(set(ids(found))) == 4


def test_copies_of_a_text_are_read_once(recaller: Recaller, service: FakeService) -> None:
    def spoil(response: retrieval_pb2.RetrieveResponse) -> None:
        hits = response.results[0].hits
        for copy in hits[1:3]:
            copy.text = hits[0].text

    service.spoil = spoil
    (found,) = recaller.recall([QUERY])
    assert [memory.refused for memory in found.read] == [""] * 3
    assert len(found.memories) == len({memory.text for memory in found.read}) == 3


# The whole answer is wrong, late or missing: no memories, and the reason by name


def test_an_outage_costs_one_call_until_its_pause_is_over(tiny: Bundle, service: FakeService) -> None:
    now = [100.0]
    recaller = recaller_of(tiny, service.address, clock=lambda: now[0])
    service.abort = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much to do")
    failed, skipped = recaller.recall([QUERY])[0], recaller.recall([QUERY])[0]
    assert (failed.state, skipped.state) == ("failed", "skipped")
    assert failed.error.startswith("OVERLOADED")
    assert "no new call for 1.0 s" in skipped.error
    assert len(service.requests) == 1
    now[0] += 1
    service.abort = None
    assert [recaller.recall([QUERY])[0].state for _ in range(2)] == ["fetched", "held"]


def test_a_slow_device_does_not_blame_the_service(
    tiny: Bundle, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Review, bug 4: a call that got the rest of a deadline timed out, and the service was left alone for it."""
    recaller = recaller_of(tiny, service.address)
    service.delay_s = 0.3
    embed = recaller.embedder.embed
    monkeypatch.setattr(recaller.embedder, "embed", lambda texts: time.sleep(0.8) or embed(texts))
    (late,) = recaller.recall([QUERY], deadline_s=1.0)
    assert (late.state, late.reason) == ("failed", "DEADLINE_EXCEEDED")
    monkeypatch.undo()
    service.delay_s = 0.0
    assert recaller.recall([QUERY])[0].state == "fetched", "the service is called again at once"


def test_a_fault_of_the_device_costs_a_chunk(recaller: Recaller, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> np.ndarray:
        raise RuntimeError("the runtime gave up")

    monkeypatch.setattr(recaller.embedder, "embed", broken)
    (found,) = recaller.recall([QUERY])
    assert (found.state, found.error) == ("failed", "RuntimeError: the runtime gave up")


# Connections and cancellation


def test_a_cancelled_recall_ends_its_call_and_is_no_failure(
    tiny: Bundle, service: FakeService, gate: threading.Event
) -> None:
    cancellation, ended = Cancellation(), threading.Event()

    def cancel(_: int, context: grpc.ServicerContext) -> None:
        context.add_callback(ended.set)
        cancellation.cancel()
        gate.wait(LONG_S)

    service.before = cancel
    recaller = recaller_of(tiny, service.address)
    (found,) = recaller.recall([QUERY], cancellation=cancellation)
    assert (found.state, found.error.split(":")[0]) == ("skipped", "CANCELLED")
    assert ended.wait(LONG_S)
    service.before = None
    assert recaller.recall([QUERY])[0].state == "fetched", "the service is not blamed"


# This device's own knowledge bases next to the service's


class OfThisDevice:
    """What a client retrieves as memories of this device: other ids, and perhaps other texts that are nearer."""

    def __init__(self, client: MemoryClient, *, nearer: bool = False) -> None:
        self._client, self._nearer = client, nearer

    def retrieve(self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = ()) -> RetrievalResult:
        answer = self._client.retrieve(vectors, k=k, words=words)
        (hits,) = answer.hits
        own = (replace(hit, memory_id=hit.memory_id + 1000, knowledge_base="mine") for hit in hits)
        if self._nearer:
            own = (replace(hit, score=hit.score + 1, text=f"{hit.text}!") for hit in own)
        return replace(answer, hits=(tuple(own),))


def test_a_text_that_both_have_is_named_with_the_knowledge_base_that_was_requested(
    tiny: Bundle, service: FakeService
) -> None:
    recaller = recaller_of(tiny, service.address, local=[OfThisDevice(client_of(tiny, service.address))])
    (found,) = recaller.recall([QUERY])
    assert {memory.knowledge_base for memory in found.read} == {"default"}


class Damaged:
    """A knowledge base of this device whose file is damaged."""

    def __len__(self) -> int:
        return 1

    def retrieve(self, *_: object, **__: object) -> RetrievalResult:
        raise CorruptFile("mine is damaged")


def test_a_damaged_file_of_this_device_hides_nothing_of_the_service(tiny: Bundle, service: FakeService) -> None:
    recaller = recaller_of(tiny, service.address, local=[Damaged()])
    (found,) = recaller.recall([QUERY])
    assert (len(found.memories), found.error) == (5, "")
    service.spoil = lambda response: [result.ClearField("hits") for result in response.results]
    (found,) = recaller.recall([QUERY])
    assert found.error == "CORRUPT_FILE: mine is damaged", "not that nothing was found"


def test_memories_of_this_device_are_not_called_fetched(tiny: Bundle, service: FakeService) -> None:
    recaller = recaller_of(tiny, service.address, local=[OfThisDevice(client_of(tiny, service.address), nearer=True)])
    (found,) = recaller.recall([QUERY])
    assert {(memory.knowledge_base, memory.held) for memory in found.read} == {("mine", True)}
    assert found.state == "held"


# Offline: what is needed of a pack is what a client's `retrieve` does, so another service stands in for it


def test_when_the_service_is_away_the_pack_is_read_and_the_reason_kept(
    tiny: Bundle, service: FakeService, nobody: str
) -> None:
    stand_in = client_of(tiny, service.address)
    recaller = recaller_of(tiny, nobody, stand_ins=lambda: [stand_in])
    first, second = recaller.recall([QUERY])[0], recaller.recall([QUERY])[0]
    assert (first.state, second.state, first.error, len(second.memories)) == ("offline", "offline", "", 5)
    assert first.service_error.startswith("UNREACHABLE: no service at")
    assert "no new call" in second.service_error


def test_a_refusal_is_not_hidden_by_the_pack(tiny: Bundle, service: FakeService) -> None:
    service.abort = (grpc.StatusCode.PERMISSION_DENIED, "wrong key")
    stand_in = client_of(tiny, service.address)
    recaller = recaller_of(tiny, service.address, stand_ins=lambda: [stand_in])
    (found,) = recaller.recall([QUERY])
    assert (found.state, found.error.split(":")[0]) == ("failed", "ACCESS_REFUSED")


def test_only_documents_of_several_files_that_are_called_alike_are_named_with_more() -> None:
    def read(key: str, base: str = "firm") -> MemoryRead:
        return MemoryRead(1, key, "Rules", 0, 0.5, None, knowledge_base=base)

    assert named_apart([read("a#row=1"), read("a#row=1"), read("a#row=2")]) == ["Rules (a)"]
    assert named_apart([read("a"), read("b", "mine")]) == ["firm: Rules", "mine: Rules"]
    assert named_apart([read("a"), read("b"), read("c", "")]) == ["firm: a", "firm: b", "c"]
