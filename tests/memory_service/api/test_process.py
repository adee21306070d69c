"""The service as a real process: SIGTERM, a client that goes away, and what is there afterwards."""

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memory3.channel import ChannelSettings, channel_options
from protos.memory.v1 import ingestion_pb2 as pb
from testing.encoders import HashEncoder
from tests.memory_service.processes import Service, client_of, service
from tests.memory_service.running import Client, document, eventually, ingest_requests, refusal, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def ingest_until_it_ends(client: Client, count: int, acknowledged: list[str]) -> grpc.RpcError | None:
    """Sends documents d0, d1, …; collects the acknowledged keys; returns the error that ended the stream."""
    requests = ingest_requests("kb", [document(f"d{n}", f"Text {n}.") for n in range(count)])
    try:
        for response in client.ingestion.Ingest(iter(requests), timeout=3000):
            if response.WhichOneof("message") == "acknowledged":
                acknowledged.append(response.acknowledged.document_key)
    except grpc.RpcError as error:
        return error
    return None


def retrieve_until(over: threading.Event, client: Client, found: list[str], *, to_an_error: bool) -> None:
    """Adds what each retrieval finds, or its status."""
    while not over.is_set():
        try:
            found.append(client.hits("kb", "First.", 1)[0].document_key)
        except grpc.RpcError as error:
            found.append(error.code().name)
            if to_an_error:
                return


def test_sigterm_drains_no_device_notices_and_a_stream_can_go_on_afterwards(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    alone: list[str] = []
    of_device: list[str] = []
    statuses: list[int] = []
    over = threading.Event()
    with (
        running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/replica", warm_up=False) as (other, beside),
        service(tmp_path, engine="chdb", seconds_per_reference=0.02) as first,
        client_of(first) as client,
        # As `edge_client` does, from whichever of the two replicas is there.
        grpc.insecure_channel(
            f"ipv4:{first.address},127.0.0.1:{beside.port}", options=channel_options(ChannelSettings(first.address))
        ) as channel,
        ThreadPoolExecutor(4) as pool,
    ):
        for each in (client, other):
            each.ingest("kb", document("first", "First."))

        def watch_health() -> None:
            watching = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=300)
            with contextlib.suppress(grpc.RpcError):
                statuses.extend(reply.status for reply in watching)

        asking = [
            pool.submit(watch_health),
            pool.submit(retrieve_until, over, client, alone, to_an_error=True),
            pool.submit(retrieve_until, over, Client(channel), of_device, to_an_error=False),
        ]
        stream = pool.submit(ingest_until_it_ends, client, 90, acknowledged)
        eventually(lambda: len(acknowledged) >= 10)
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(120) == 0, first.log.read_text()
        error = stream.result(120)
        assert error is not None
        assert (error.code(), refusal(error).reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        afterwards = len(of_device)
        eventually(lambda: len(of_device) >= afterwards + 20)
        over.set()
        for one in asking:
            one.result(120)
    assert statuses[0] == SERVING
    assert NOT_SERVING in statuses
    assert set(of_device) == {"first"}
    # Who has one replica alone: calls under way were answered, then the port is closed.
    assert set(alone) - {"UNAVAILABLE"} == {"first"}
    assert "Traceback" not in first.log.read_text()
    with service(tmp_path, engine="chdb") as again, client_of(again) as client:
        assert client.keys("kb") == sorted(["first", *acknowledged])
        assert ingest_until_it_ends(client, 90, []) is None
        assert client.keys("kb") == sorted(["first", *(f"d{n}" for n in range(90))])


def test_a_second_process_on_the_same_store_says_so_and_does_not_listen(tmp_path: Path) -> None:
    with (
        service(tmp_path) as first,
        pytest.raises(AssertionError, match="in use by another process"),
        service(tmp_path),
    ):
        pass
    assert [event["event"] for event in events(first)].count("listening") == 1


def test_a_client_that_goes_away_leaves_no_half_document(tmp_path: Path) -> None:
    stop = threading.Event()

    def requests() -> Iterator[pb.IngestRequest]:
        yield from ingest_requests("kb", [document(f"d{n}", f"Text {n}. " * 200) for n in range(20)])
        stop.wait(10)

    with service(tmp_path, seconds_per_reference=0.01) as process:
        with client_of(process) as client:
            call = client.ingestion.Ingest(requests(), timeout=3000)
            for _ in range(3):
                next(call)
            call.cancel()
            stop.set()
        with client_of(process) as client:
            documents, references = client.counts("kb")
            assert 0 < documents <= 20
            assert references % documents == 0
            assert client.keys("kb")
        # To leave is no error, whether the service notices it as the end of the requests or by an answer.
        eventually(lambda: [one["level"] for one in events(process) if one["event"] == "call"] == ["info"])
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(120) == 0


def events(process: Service) -> list[dict[str, Any]]:
    """What the service logged until now."""
    lines = process.log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
