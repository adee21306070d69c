"""SIGTERM under load: with two replicas no call that may be repeated fails, and recall is what it was afterwards."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import grpc
import pytest

from edge_client.channel import ChannelSettings, channel_options
from tests.memory_service.encoders import vector_of
from tests.memory_service.processes import Service, client_of, service
from tests.memory_service.running import Client, document

pytestmark = pytest.mark.slow

DOCUMENTS = [document(f"d{n}", f"Text {n}.") for n in range(60)]


def found(client: Client, n: int) -> list[int]:
    hits = client.retrieve("kb", vector_of(f"Text {n}.")[None], k=10).results[0].hits
    return [hit.memory_id for hit in hits]


def test_replicas_are_restarted_one_after_the_other_and_no_device_notices(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with service(folders[0]) as first, service(folders[1]) as second:
        for replica in (first, second):
            with client_of(replica) as client:
                client.ingest("kb", *DOCUMENTS)
                expected = [found(client, n) for n in range(20)]
        address = f"ipv4:{first.address},{second.address}"
        answered, failures, over = [0] * 8, [], threading.Event()

        def ask(thread: int) -> None:
            settings = ChannelSettings("127.0.0.1:1")
            with grpc.insecure_channel(address, options=channel_options(settings)) as channel:
                client = Client(channel)
                while not over.is_set():
                    n = answered[thread] % 20
                    try:
                        assert found(client, n) == expected[n]
                    except grpc.RpcError as error:
                        failures.append(f"{error.code()}: {error.details()}")
                    answered[thread] += 1

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(answered))]
        for thread in threads:
            thread.start()

        def until_answered(more: int) -> None:
            goal = sum(answered) + more
            while sum(answered) < goal:
                time.sleep(0.01)

        def stopped(replica: Service) -> None:
            until_answered(50)
            replica.process.send_signal(signal.SIGTERM)
            assert replica.process.wait(120) == 0, replica.log.read_text()
            until_answered(50)

        try:
            stopped(first)
        finally:
            over.set()
            for thread in threads:
                thread.join(120)
        assert failures == []
        with service(folders[0]) as again, client_of(again) as client:
            assert [found(client, n) for n in range(20)] == expected
