"""Whatever the service does, decoding goes on, answers what it would without it, and the events say what happened."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from edge_client import EdgeModel, Event, Finished, Recalled, Token
from memory_model.bundle import Bundle
from protos.memory.v1 import retrieval_pb2
from tests.edge_client.certificates import Authority
from tests.edge_client.cut_connection import cutting
from tests.edge_client.fake_service import FakeService

QUESTION = "What is the code of Lima?"
MANY: dict[str, Any] = {
    "temperature": 50.0,
    "seed": 3,
    "max_tokens": 40,
}  # two generated chunks of 16, and a half
WAIT_S = 20.0


def tokens(events: list[Event]) -> list[int]:
    return [e.id for e in events if isinstance(e, Token)]


def recalls(events: list[Event]) -> list[Recalled]:
    return [e for e in events if isinstance(e, Recalled)]


def finished(events: list[Event]) -> Finished:
    end = events[-1]
    assert isinstance(end, Finished)
    return end


def garbage(response: retrieval_pb2.RetrieveResponse) -> None:
    for result in response.results:
        for hit in result.hits:
            hit.payload = b"\x00garbage" * 99
            hit.held = False


def held_though_never_sent(response: retrieval_pb2.RetrieveResponse) -> None:
    for result in response.results:
        for hit in result.hits:
            hit.payload, hit.held = b"", True


def scores_that_are_none(response: retrieval_pb2.RetrieveResponse) -> None:
    garbage(response)
    for result in response.results:
        for hit in result.hits:
            hit.score = float("nan")


def nothing_at_all(response: retrieval_pb2.RetrieveResponse) -> None:
    response.Clear()


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
        with cutting(service.address, *[2000] * 50) as proxy:
            yield proxy.address
    elif fault == "down":
        yield "127.0.0.1:1"
    else:
        yield service.address


FAULTS: dict[str, str] = {
    "down": "UNREACHABLE", "half a response": "UNREACHABLE", "slow": "DEADLINE_EXCEEDED",
    "internal": "SERVICE_FAILED", "another model": "INCOMPATIBLE", "overloaded": "OVERLOADED",
    "nothing": "SERVICE_FAILED", "garbage": "DAMAGED_MEMORY", "held": "DAMAGED_MEMORY", "no scores": "DAMAGED_MEMORY",
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_answer_is_that_without_memories_and_the_reason_is_named(
    tiny: Bundle, service: FakeService, fault: str
) -> None:
    service.spoil = {
        "garbage": garbage, "held": held_though_never_sent, "no scores": scores_that_are_none,
        "nothing": nothing_at_all,
    }.get(fault)  # fmt: skip
    codes = {
        "internal": grpc.StatusCode.INTERNAL, "another model": grpc.StatusCode.FAILED_PRECONDITION,
        "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    }  # fmt: skip
    if fault in codes:
        service.before = abort(codes[fault])
    over = threading.Event()
    if fault == "slow":

        def wait(*_: object) -> None:
            over.wait(WAIT_S)

        service.before = wait
    with front(service, fault) as address, EdgeModel.open(tiny.folder, address, deadline_s=0.5) as model:
        without = list(model.session().send(QUESTION, memory="off", **MANY))
        events = list(model.session().send(QUESTION, **MANY))
        over.set()
    assert tokens(events) == tokens(without)
    first = recalls(events)[0]
    said = [first.recall.error, *(m.refused for m in first.recall.read)]
    assert any(text.startswith(FAULTS[fault]) for text in said), said
    assert not first.recall.memories
    assert finished(events).reason == "length"


def test_an_expired_certificate_is_named_by_the_recall_and_decoding_goes_on(
    tiny: Bundle, tmp_path: Path
) -> None:
    authority = Authority("test authority")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    pem = authority.issue("service", "127.0.0.1", days=-1)
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(pem.key, pem.certificate)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    with EdgeModel.open(tiny.folder, f"127.0.0.1:{port}", ca=tmp_path / "ca.pem", deadline_s=WAIT_S) as model:
        events = list(model.session().send(QUESTION, **MANY))
    server.stop(None).wait()
    first, *later = recalls(events)
    assert first.recall.error.startswith("CERTIFICATE: ")
    assert "its certificate has expired: have it renewed" in first.recall.error
    assert later[-1].state == "skipped", "nobody is asked again at once"
    assert finished(events).reason == "length"


def test_a_call_that_hangs_delays_no_other_session(tiny: Bundle, service: FakeService) -> None:
    over, hanging = threading.Event(), threading.Event()

    def hang_once(number: int, _: grpc.ServicerContext) -> None:
        if number == 0:
            hanging.set()
            over.wait(WAIT_S)

    service.before = hang_once
    with EdgeModel.open(tiny.folder, service.address, deadline_s=WAIT_S) as model:
        slow = model.session()
        events: list[Event] = []
        thread = threading.Thread(target=lambda: events.extend(slow.send(QUESTION, max_tokens=2)))
        thread.start()
        assert hanging.wait(WAIT_S)
        answered = list(model.session().send(QUESTION, max_tokens=2))
        over.set()
        thread.join(WAIT_S)
    assert {r.state for r in recalls(answered)} == {"fetched"}
    assert recalls(answered)[0].recall.times.queue_ms < 1000 * WAIT_S / 2
    assert not finished(events).without_memory


def test_a_service_that_fails_in_mid_answer_leaves_the_memories_that_are_read(
    tiny: Bundle, service: FakeService
) -> None:
    answers = []
    for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT):
        service.requests.clear()
        service.before = abort(code, first=1)
        with EdgeModel.open(
            tiny.folder,
            service.address,
            memory="exact",
            deadline_s=WAIT_S,
        ) as model:
            events = list(model.session().send(QUESTION, **MANY))
        later = [r for r in recalls(events) if r.generated]
        assert all(len(r.recall.memories) == 5 for r in recalls(events) if not r.generated)
        assert later
        assert all(r.recall.error and r.kept == 5 for r in later)
        answers.append(tokens(events))
    assert answers[0] == answers[1] == answers[2]
