"""Whatever the service does, decoding goes on, answers what it would without it, and the events say what happened."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge_client import EdgeModel
from memory3.codec.codec import ExactCodec
from memory3.files.bundle import Bundle
from protos.memory.v1 import retrieval_pb2
from testing.tcp_proxy import TcpProxy
from tests.edge_client.answers import QUESTION, finished, recalls_of, tokens_of
from tests.edge_client.fake_service import FakeService

MANY: dict[str, Any] = {"temperature": 50.0, "seed": 3, "max_tokens": 40}
"""Two generated chunks of 16, and a half."""
WAIT_S = 20.0


def spoiled(response: retrieval_pb2.RetrieveResponse, payload: bytes, *, held: bool, score: float | None) -> None:
    """Every hit is another one."""
    for hit in (hit for result in response.results for hit in result.hits):
        hit.payload, hit.held = payload, held
        hit.score = hit.score if score is None else score


GARBAGE = b"\x00garbage" * 99
SPOILS: dict[str, Callable[[retrieval_pb2.RetrieveResponse], None]] = {
    "garbage": lambda response: spoiled(response, GARBAGE, held=False, score=None),
    "held": lambda response: spoiled(response, b"", held=True, score=None),  # though it was never sent
    "no scores": lambda response: spoiled(response, GARBAGE, held=False, score=float("nan")),
    "nothing": lambda response: response.Clear(),
}
CODES = {
    "internal": grpc.StatusCode.INTERNAL,
    "another model": grpc.StatusCode.FAILED_PRECONDITION,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def abort(code: grpc.StatusCode, first: int = 0) -> Callable[[int, grpc.ServicerContext], None]:
    """Refuses the requests from number `first` on."""

    def refuse(number: int, context: grpc.ServicerContext) -> None:
        if number >= first:
            context.abort(code, "so says the test")

    return refuse


@contextmanager
def front(service: FakeService, fault: str) -> Iterator[str]:
    """The address at which the service has this fault."""
    if fault == "half a response":
        with TcpProxy(service.address, *[2000] * 50) as proxy:
            yield proxy.address
    elif fault == "down":
        yield "127.0.0.1:1"
    else:
        yield service.address


FAULTS: dict[str, str] = {
    "down": "UNREACHABLE",
    "half a response": "UNREACHABLE",
    "slow": "DEADLINE_EXCEEDED",
    "internal": "SERVICE_FAILED",
    "another model": "INCOMPATIBLE",
    "overloaded": "OVERLOADED",
    "nothing": "SERVICE_FAILED",
    "garbage": "DAMAGED_MEMORY",
    "held": "DAMAGED_MEMORY",
    "no scores": "DAMAGED_MEMORY",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_answer_is_that_without_memories_and_the_reason_is_named(
    tiny: Bundle, service: FakeService, fault: str
) -> None:
    service.spoil, over = SPOILS.get(fault), threading.Event()
    if fault in CODES:
        service.before = abort(CODES[fault])
    elif fault == "slow":
        service.before = lambda *_: over.wait(WAIT_S) and None
    with front(service, fault) as address, EdgeModel.open(tiny.folder, address, deadline_s=0.5) as model:
        without = list(model.session().send(QUESTION, memory="off", **MANY))
        events = list(model.session().send(QUESTION, **MANY))
        over.set()
    assert tokens_of(events) == tokens_of(without)
    first = recalls_of(events)[0]
    said = [first.recall.error, *(m.refused for m in first.recall.read)]
    assert any(text.startswith(FAULTS[fault]) for text in said), said
    assert not first.recall.memories
    assert finished(events).reason == "length"


def test_a_codec_that_is_slow_to_prepare_delays_the_opening_and_not_the_first_answer(
    tiny: Bundle, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = set[ExactCodec]()
    decode = ExactCodec.decode

    def slow_unless_prepared(codec: ExactCodec, codes: np.ndarray) -> np.ndarray:
        time.sleep(0 if codec in ready else WAIT_S)
        return decode(codec, codes)

    monkeypatch.setattr(ExactCodec, "prepare", lambda codec: ready.add(codec))
    monkeypatch.setattr(ExactCodec, "decode", slow_unless_prepared)
    with EdgeModel.open(tiny.folder, service.address, deadline_s=0.75 * WAIT_S) as model:
        events = list(model.session().send(QUESTION, **MANY))
    assert len(recalls_of(events)[0].recall.memories) == 5


def test_a_service_that_fails_in_mid_answer_leaves_the_memories_that_are_read(
    tiny: Bundle, service: FakeService
) -> None:
    answers = []
    for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT):
        service.requests.clear()
        service.before = abort(code, first=1)
        with EdgeModel.open(tiny.folder, service.address, memory="exact", deadline_s=WAIT_S) as model:
            events = list(model.session().send(QUESTION, **MANY))
        later = [r for r in recalls_of(events) if r.generated]
        assert all(len(r.recall.memories) == 5 for r in recalls_of(events) if not r.generated)
        assert later
        assert all(r.recall.error and r.kept == 5 for r in later)
        answers.append(tokens_of(events))
    assert answers[0] == answers[1] == answers[2]


PATIENCE_S = 20.0
"""gRPC's own threads keep an ended call for a moment."""


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def asked_and_closed(folder: Path, service: FakeService, *, leave_early: bool) -> list[weakref.ref[object]]:
    """Open, ask, close; what of the model should be gone."""
    with EdgeModel.open(folder, service.address, deadline_s=0.3) as model:
        stream = model.generate("Who came third?", max_tokens=1 if leave_early else 20)
        next(stream)
        if leave_early:
            stream.close()
        else:
            list(stream)
        engine = model.engine
        return [
            weakref.ref(each) for each in (model, engine.decoder.backend, engine.recaller, engine.recaller.embedder)
        ]


@pytest.mark.parametrize(
    ("fault", "delay_s", "leave_early"),
    [
        (None, 0.0, False),
        ((grpc.StatusCode.INTERNAL, "broken"), 0.0, False),
        ((grpc.StatusCode.UNAVAILABLE, "away"), 0.0, False),
        ((grpc.StatusCode.RESOURCE_EXHAUSTED, "busy"), 0.0, False),
        (None, 0.6, False),
        (None, 0.0, True),
    ],
    ids=["answered", "failed", "unavailable", "overloaded", "late", "left early"],
)
@pytest.mark.usefixtures("collector_off")
def test_a_closed_model_is_gone_without_the_collector(
    tiny: Bundle, service: FakeService, fault: tuple[grpc.StatusCode, str] | None, delay_s: float, leave_early: bool
) -> None:
    service.abort, service.delay_s = fault, delay_s
    left = asked_and_closed(tiny.folder, service, leave_early=leave_early)
    until = time.monotonic() + PATIENCE_S
    while (alive := [each() for each in left if each() is not None]) and time.monotonic() < until:
        del alive
        time.sleep(0.02)
    assert not alive
