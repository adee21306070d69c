"""Memory, threads and open files stay flat over many answers, also while the service fails.

MEMORY3_SOAK_S says how long (default 600 seconds).
"""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from edge_client import EdgeModel, RecallMode
from edge_client.decoder.batching import BatchingDecoder
from edge_client.engine import Engine
from edge_client.recall.embedding import QueryEmbedder
from edge_client.recall.outcome import Recall
from edge_client.recall.recaller import Recaller
from edge_client.settings import EdgeSettings
from memory3.files.bundle import Bundle
from testing.processes import resident_bytes
from tests.edge_client.fake_service import FakeService, serving
from tests.edge_client.tiny_bundle import format_of, random_memory, tiny_bundle, tiny_config, tiny_loaded

SECONDS = float(os.environ.get("MEMORY3_SOAK_S", "600"))
WARM_UP_ANSWERS = 40
GROWTH_BYTES = 8 << 20
SPARE = 8
"""Threads and files: gRPC's servers keep some that come and go."""
FAULTS = (None, (grpc.StatusCode.INTERNAL, "broken"), None, (grpc.StatusCode.UNAVAILABLE, "away"))


class NewMemories(Recaller):
    """A recaller that never gives the same arrays twice."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(QueryEmbedder(bundle.embedder()), None, bundle.memory_format)
        self.count = 0
        self.format = format_of(tiny_loaded())

    def recall(self, queries: Sequence[str], **_: object) -> list[Recall]:
        return [self.one(query) for query in queries]

    def one(self, query: str) -> Recall:
        self.count += 5
        payloads = self.format.encode([random_memory(tiny_config(), self.count + n) for n in range(5)])
        return Recall(query, tuple(self.format.decode(payloads)))


def threads_and_files() -> tuple[int, int]:
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_memory_stays_flat_over_many_answers(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path)
    payloads = format_of(tiny_loaded()).encode([random_memory(tiny_config(), n) for n in range(7)])
    texts = [f"Fact {n}." for n in range(7)]
    settings = EdgeSettings(memory=RecallMode.overlap, lead_tokens=4, local=tmp_path / "local")
    with (
        serving(FakeService(bundle.embedder(), texts, payloads)) as service,
        EdgeModel(Engine(bundle, BatchingDecoder.open(bundle, threads=1), NewMemories(bundle), settings)) as model,
    ):

        def answer(number: int) -> None:
            session = model.session()
            for turn in range(2):
                list(session.send(f"Question {number}, {turn}?", max_tokens=40, temperature=50.0, seed=number))
            if number % 5 == 0:
                session.save(tmp_path / "chat")
                list(model.load_session(tmp_path / "chat").send("And?", max_tokens=5))
            next(stream := model.generate("Left early", max_tokens=40))
            stream.close()
            list(model.generate(f"Another {number}", max_tokens=20, temperature=50.0, seed=number, logprobs=3))
            with EdgeModel.open(bundle.folder, service.address, deadline_s=0.2) as connected:
                service.abort = FAULTS[number % len(FAULTS)]
                service.delay_s = 0.3 if number % 5 == 0 else 0.0
                list(connected.generate(f"What is the code of Lima, {number}?", max_tokens=20))
            service.requests.clear()

        for number in range(WARM_UP_ANSWERS):
            answer(number)
        threads, files = threads_and_files()
        before, until = resident_bytes(), time.monotonic() + SECONDS
        while time.monotonic() < until:
            number += 1
            answer(number)
        grown = resident_bytes() - before
        more_threads, more_files = (now - then for now, then in zip(threads_and_files(), (threads, files), strict=True))
    print(f"{number} rounds, {grown / 2**20:.1f} MiB grown from {before / 2**20:.0f} MiB")
    assert grown < GROWTH_BYTES
    assert more_threads <= SPARE
    assert more_files <= SPARE
