"""Many answers at once through the local server: they share steps, and each is what it would be alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from deploy.processes import AppProcess
from memory_model.bundle import Bundle
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MODEL, call, post

AT_ONCE = 8
PLACES = ("Oslo", "Rome", "Lima", "Cairo", "Quito", "Paris", "Delhi", "Bern")
# Different lengths, so that answers join and leave; some without memory.
REQUESTS: list[dict[str, Any]] = [
    {
        "messages": [{"role": "user", "content": f"{'What is it? ' * n}The code of {place}?"}],
        "max_tokens": 24 + 8 * n, "memory": {"mode": "off" if n % 3 == 2 else "exact"},
    }
    for n, place in enumerate(PLACES)
]  # fmt: skip


@pytest.fixture(scope="module")
def wide(tiny: Bundle, memories: FakeService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    waits = {"EDGE_CLIENT_DEADLINE_S": "20", "EDGE_CLIENT_THREADS": "1"}
    folder, options = tmp_path_factory.mktemp("wide"), ("--parallel", str(AT_ONCE))
    with AppProcess.start(folder, tiny.folder, memories.address, *options, environment=waits) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


def answer(server: AppProcess, request: dict[str, Any], start: threading.Barrier | None = None) -> str:
    """The text, after all others are ready to start."""
    if start is not None:
        start.wait()
    text: str = post(server, request).json()["choices"][0]["message"]["content"]
    return text


def all_at_once(server: AppProcess) -> list[str]:
    start = threading.Barrier(AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda request: answer(server, request, start), REQUESTS))


def steps(server: AppProcess) -> dict[int, int]:
    """Steps by batch size."""
    found = call(server.port, "GET", "/health").json()["steps_by_batch_size"]
    return {int(size): number for size, number in found.items()}


def test_eight_at_once_say_what_each_says_alone_and_share_steps(wide: AppProcess) -> None:
    alone = [answer(wide, request) for request in REQUESTS]
    assert set(steps(wide)) == {1}
    assert all_at_once(wide) == alone
    found = steps(wide)
    assert max(found) >= AT_ONCE // 2, found
    assert len(set(alone)) == AT_ONCE


def test_one_that_hangs_up_does_not_disturb_the_others(wide: AppProcess) -> None:
    expected = all_at_once(wide)
    with OpenAI(base_url=f"{wide.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Say much"}], max_tokens=400, stream=True,
            logit_bias={"257": -100},
        )  # fmt: skip
        next(iter(stream))
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(all_at_once, wide)
            next(iter(stream))
            stream.close()
            assert others.result(60) == expected
