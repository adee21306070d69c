"""SIGTERM under load: no call of a device fails, recall is what it was afterwards, an ingestion goes on by itself."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from memory3.channel import ChannelSettings, channel_options
from memory3.formats import read_documents
from memory_service.client.ingest import Destination, Ingestion, Upload
from protos.memory.v1 import models_pb2
from tests.memory_service.processes import Service, client_of, service
from tests.memory_service.running import Client, document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DOCUMENTS = [document(f"d{n}", f"Text {n}.") for n in range(60)]
ROUNDS = 3
DEVICES = 8
FACTS = 2000


def found(client: Client, n: int) -> list[int]:
    return [hit.memory_id for hit in client.hits("kb", f"Text {n}.", 10)]


def ingested(address: str, folder: Path) -> Counter[str]:
    """What `memory-service ingest` does with a file of facts."""
    file = folder / "facts.jsonl"
    file.write_text("".join(json.dumps({"key": f"k{n}", "text": f"Fact {n}."}) + "\n" for n in range(FACTS)))
    to = Destination(address, "facts")
    to.require(create=True)
    return Counter(upload.outcome for upload in Ingestion(to).run(map(Upload.of, read_documents(file))))


class Devices:
    """Those who ask both replicas all the time, as `edge_client` does."""

    def __init__(self, addresses: list[str], expected: list[list[int]]) -> None:
        self.answered = [0] * DEVICES
        self.failures: list[str] = []
        self._expected = expected
        self._target = "ipv4:" + ",".join(addresses)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(DEVICES)]

    def _ask(self, thread: int) -> None:
        options = [*channel_options(ChannelSettings("127.0.0.1:1")), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._target, options=options) as channel:
            client = Client(channel)
            while not self._over.is_set():
                n = self.answered[thread] % 20
                try:
                    if found(client, n) != self._expected[n]:
                        self.failures.append(f"query {n} found other memories")
                    client.models.Describe(models_pb2.DescribeRequest(), timeout=60)
                except grpc.RpcError as error:
                    self.failures.append(f"{error.code()}: {error.details()}")
                self.answered[thread] += 1

    def until_answered(self, more: int) -> None:
        """Waits until every device got so many answers more."""
        goals = [count + more for count in self.answered]
        while any(count < goal for count, goal in zip(self.answered, goals, strict=True)):
            time.sleep(0.01)

    def until_connected(self, address: str, others: Callable[[], int]) -> None:
        """Waits until every device has found the replica at this address. others: connections of others."""
        port = int(address.rpartition(":")[2])
        while (
            sum(
                c.status == psutil.CONN_ESTABLISHED and c.raddr.port == port
                for c in psutil.Process().net_connections("tcp")
                if c.raddr
            )
            < len(self.answered) + others()
        ):
            time.sleep(0.05)

    @contextmanager
    def asking(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(120)


def test_replicas_are_restarted_one_after_the_other_and_no_device_notices(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    with ExitStack() as stack:

        def started(which: int, address: str = "127.0.0.1:0") -> Service:
            # On files: engines order what is equally near each in its own way.
            running = service(folders[which], engine="file", seconds_per_reference=0.01, MEMORY_SERVICE_LISTEN=address)
            return stack.enter_context(running)

        replicas = []
        for which, folder in enumerate(folders):
            folder.mkdir()
            replicas.append(started(which))
            with client_of(replicas[-1]) as client:
                client.ingest("kb", *DOCUMENTS)
                expected = [found(client, n) for n in range(20)]
        devices = Devices([replica.address for replica in replicas], expected)
        with ThreadPoolExecutor(1) as beside, devices.asking():
            ingestion = beside.submit(ingested, replicas[0].address, tmp_path)
            for turn in range(2 * ROUNDS):
                devices.until_connected(replicas[0].address, lambda: not ingestion.done())
                devices.until_connected(replicas[1].address, lambda: 0)
                devices.until_answered(10)
                replica = replicas[turn % 2]
                replica.process.send_signal(signal.SIGTERM)
                assert replica.process.wait(120) == 0, replica.log.read_text()
                devices.until_answered(10)
                replicas[turn % 2] = started(turn % 2, replica.address)
                with client_of(replicas[turn % 2]) as client:
                    assert [found(client, n) for n in range(20)] == expected
            devices.until_answered(10)
            outcomes = ingestion.result(600)
        assert devices.failures == []
        # What was stored but not yet acknowledged when the service ended is sent again and is there already.
        assert outcomes.total() == FACTS
        assert set(outcomes) <= {"stored", "unchanged"}
        with client_of(replicas[0]) as client:
            assert client.counts("facts") == (FACTS, FACTS)
        assert all("Traceback" not in replica.log.read_text() for replica in replicas)
        print(f"{2 * ROUNDS} restarts, {2 * sum(devices.answered)} calls, {FACTS} documents {dict(outcomes)}")
