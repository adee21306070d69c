"""A model that was closed and dropped is gone at once, whatever the service did: nothing of it waits for the collector.

What waits holds native memory, of which Python's collector knows nothing: an embedder's session, memories, channels.
"""

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from edge_client import EdgeModel
from memory_model.bundle import Bundle
from tests.edge_client.fake_service import FakeService

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
        return [weakref.ref(each) for each in (model, model.graph, model.recaller, model.recaller.embedder)]


@pytest.mark.parametrize(
    ("fault", "delay_s", "leave_early"),
    [
        (None, 0.0, False), ((grpc.StatusCode.INTERNAL, "broken"), 0.0, False),
        ((grpc.StatusCode.UNAVAILABLE, "away"), 0.0, False), ((grpc.StatusCode.RESOURCE_EXHAUSTED, "busy"), 0.0, False),
        (None, 0.6, False), (None, 0.0, True),
    ],
    ids=["answered", "failed", "unavailable", "overloaded", "late", "left early"],
)  # fmt: skip
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
