"""The whole way with real processes, the real model and its real bundle: serve, ingest, ask, outage, restart, stop.

One service for the module; the tests build on each other in the order of this file, as a day with it would.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeModel, Finished, Recalled, Token
from testing.processes import PROGRAMS, ServiceProcess
from tests.browser.day import write_countries

# Benin, which was held out of tuning, and two of its neighbours, each with other lines of the Factbook: this tests the
# way of a memory, not how well the model tells countries apart. Lines enough to fill whole references, as tuned.
LINES = {"bn": slice(0, 20), "to": slice(40, 60), "ng": slice(80, 100)}
QUESTION = "What is the total area of Benin?"
ANSWER = "112,622"


class Flow:
    """The folder of this run, and its service."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder, self.bundle = folder, bundle
        self.documents = folder / "documents.jsonl"
        self.read: dict[str, Any] = {}  # the first answer with memories
        self.service = ServiceProcess.start(folder, bundle)

    def program(self, name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        settings = ("EDGE_CLIENT_", "MEMORY_SERVICE_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(settings)}
        command = [str(PROGRAMS / name), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=environment, timeout=300)

    def ingest(self) -> str:
        done = self.program(*("memory-service", "ingest", self.documents), *("--address", self.service.address))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.program(
            *("edge-client", "ask", QUESTION, "--bundle", self.bundle, "--service", self.service.address),
            *("--max-tokens", 24, "--json", *options),
        )

    def answer(self, *options: str) -> dict[str, Any]:
        done = self.ask(*options)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("flow")
    flow = Flow(folder, bundle)
    write_countries(flow.documents, LINES)
    yield flow
    flow.service.kill()


def test_an_empty_knowledge_base_is_answered_from_the_weights_alone(flow: Flow) -> None:
    answer = flow.answer()
    assert answer["answer"].strip()
    assert [chunk["read"] for chunk in answer["memories"]] == [[]]


def test_documents_sent_over_grpc_are_read_as_memories(flow: Flow) -> None:
    assert "3 stored" in flow.ingest()
    flow.read = answer = flow.answer()
    read = answer["memories"][0]["read"]
    assert not answer["without_memory"]
    assert read[0]["title"] == "Benin"
    assert f"Area - total: {ANSWER}" in read[0]["text"]
    assert ANSWER in answer["answer"]


def test_a_worker_writes_what_the_service_would_write(flow: Flow) -> None:
    to = ("--address", flow.service.address, "--kb", "workers")
    written = flow.program("memory-service", "ingest", flow.documents, *to, "--workers", 1, "--bundle", flow.bundle)
    assert (written.returncode, "3 stored" in written.stdout) == (0, True), written.stderr
    again = flow.program("memory-service", "ingest", flow.documents, *to)
    assert (again.returncode, "3 unchanged" in again.stdout) == (0, True), again.stderr


def test_without_memory_the_device_does_not_know(flow: Flow) -> None:
    answer = flow.answer("--memory", "off")
    assert answer["memories"] == []
    assert ANSWER not in answer["answer"]


def test_the_same_documents_again_change_nothing(flow: Flow) -> None:
    assert "3 unchanged" in flow.ingest()


def test_after_sigterm_and_a_new_start_everything_is_there(flow: Flow) -> None:
    before = flow.read
    flow.service.stop()  # raises unless the exit code is 0
    flow.service = ServiceProcess.start(flow.folder, flow.bundle)
    after = flow.answer()
    assert after["answer"] == before["answer"]
    assert [m["text"] for m in after["memories"][0]["read"]] == [m["text"] for m in before["memories"][0]["read"]]


def test_when_the_service_is_killed_in_mid_answer_the_pack_stands_in_until_it_is_back(flow: Flow) -> None:
    local, address = flow.folder / "local", flow.service.address
    done = flow.program(
        *("edge-client", "pull", "--service", address, "--kb", "default", "--local", local), *("--bundle", flow.bundle)
    )
    assert done.returncode == 0, done.stderr
    with EdgeModel.open(flow.bundle, address, local=local, deadline_s=20) as model:

        def answered() -> tuple[Recalled, Finished]:
            recalled, *_, finished = session.send(QUESTION, max_tokens=24)
            assert isinstance(recalled, Recalled)
            assert isinstance(finished, Finished)
            return recalled, finished

        session = model.session()
        events = session.send(QUESTION, max_tokens=24)
        first, begun = next(events), next(events)
        assert isinstance(first, Recalled)
        assert isinstance(begun, Token)
        assert first.state == "fetched"
        flow.service.kill()
        *_, finished = events
        assert isinstance(finished, Finished)
        assert ANSWER in finished.text
        second, finished = answered()  # the conversation goes on
        assert second.state == "offline"
        assert "UNREACHABLE" in second.recall.service_error
        assert finished.text
        assert not finished.without_memory
        session = model.session()
        alone, finished = answered()
        assert [m.text for m in alone.recall.read] == [m.text for m in first.recall.read]
        assert ANSWER in finished.text
        flow.service = ServiceProcess.start(flow.folder, flow.bundle, listen=address)
        end = time.monotonic() + 60  # the pauses in which it is not asked double up to half of that
        while (back := answered()[0]).state == "offline" and time.monotonic() < end:
            session = model.session()
        assert back.state == "held"
        assert back.recall.read


def test_when_the_service_is_killed_the_device_answers_without_memory_and_says_so(flow: Flow) -> None:
    flow.service.kill()
    done = flow.ask("--require-memory")
    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert answer["without_memory"]
    assert answer["answer"].strip()
    assert "UNREACHABLE" in answer["memories"][0]["error"]
