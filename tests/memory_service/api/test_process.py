"""The service as a real process: SIGTERM, a client that goes away, and what is there afterwards."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edge_client.wire.channel import ChannelSettings, channel_options
from protos.memory.v1 import ingestion_pb2 as pb
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.processes import Service, client_of, service
from tests.memory_service.running import Client, document, ingest_requests, refusal
from tests.memory_service.running import running as in_this_process

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


def test_sigterm_drains_no_device_notices_and_a_stream_can_go_on_afterwards(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    codes: list[grpc.StatusCode] = []
    of_device: list[str] = []
    statuses: list[int] = []
    replica = in_this_process(tmp_path, HashEncoder(), store=f"file://{tmp_path}/replica", warm_up=False)
    with (
        replica as (other, beside),
        service(tmp_path, engine="chdb", seconds_per_reference=0.02) as running,
        client_of(running) as client,
    ):
        for each in (client, other):
            each.ingest("kb", document("first", "First."))
        stopping = threading.Event()

        def retrieve_all_the_time() -> None:
            while not stopping.is_set():
                try:
                    client.retrieve("kb", vector_of("First.")[None])
                    codes.append(grpc.StatusCode.OK)
                except grpc.RpcError as error:
                    codes.append(error.code())
                    return

        def retrieve_as_a_device() -> None:
            """As `edge_client` does, from whichever of the two replicas is there."""
            addresses = f"ipv4:{running.address},127.0.0.1:{beside.port}"
            options = channel_options(ChannelSettings(running.address))
            with grpc.insecure_channel(addresses, options=options) as channel:
                while not stopping.is_set():
                    try:
                        found = Client(channel).retrieve("kb", vector_of("First.")[None])
                        of_device.append(found.results[0].hits[0].document_key)
                    except grpc.RpcError as error:
                        of_device.append(f"{error.code()}: {error.details()}")

        def watch_health() -> None:
            watch = health_pb2_grpc.HealthStub(client.channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=300
            )
            try:
                statuses.extend(reply.status for reply in watch)
            except grpc.RpcError:
                return

        asking = (retrieve_all_the_time, retrieve_as_a_device, watch_health)
        threads = [threading.Thread(target=target) for target in asking]
        for thread in threads:
            thread.start()
        ended: list[grpc.RpcError | None] = []
        stream = threading.Thread(target=lambda: ended.append(ingest_until_it_ends(client, 90, acknowledged)))
        stream.start()
        while len(acknowledged) < 10:
            time.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(120) == 0, running.log.read_text()
        stream.join(120)
        afterwards = len(of_device)
        while len(of_device) < afterwards + 20:
            time.sleep(0.01)
        stopping.set()
        for thread in threads:
            thread.join(120)
        error = ended[0]
        assert error is not None
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert refusal(error).reason == "SHUTTING_DOWN"
    assert statuses[0] == SERVING
    assert NOT_SERVING in statuses
    assert set(of_device) == {"first"}
    # Who has one replica alone: calls under way were answered, then the port is closed.
    assert codes.count(grpc.StatusCode.OK) > 0
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    assert "Traceback" not in (tmp_path / "log").read_text()
    with service(tmp_path, engine="chdb") as running, client_of(running) as client:
        assert client.keys("kb") == sorted(["first", *acknowledged])
        rest: list[str] = []
        assert ingest_until_it_ends(client, 90, rest) is None
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
    def requests(stop: threading.Event) -> Iterator[pb.IngestRequest]:
        yield from ingest_requests("kb", [document(f"d{n}", f"Text {n}. " * 200) for n in range(20)])
        stop.wait(10)

    with service(tmp_path, seconds_per_reference=0.01) as running:
        stop = threading.Event()
        with client_of(running) as client:
            call = client.ingestion.Ingest(requests(stop), timeout=3000)
            for _ in range(3):
                next(call)
            call.cancel()
            stop.set()
        with client_of(running) as client:
            documents, references = client.counts("kb")
            assert 0 < documents <= 20
            assert references % documents == 0
            assert client.keys("kb")
        while not (
            of_stream := [event for event in events(running) if event.get("method", "").endswith("/Ingest")]
        ):
            time.sleep(0.02)
        # To leave is no error, whether the service notices it as the end of the requests or by an answer.
        assert {(event["event"], event["level"]) for event in of_stream} == {("call", "info")}
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(120) == 0


def events(running: Service) -> list[dict[str, str]]:
    """What the service logged until now."""
    lines = running.log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
