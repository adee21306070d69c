"""Items into a knowledge base over Ingestion.Ingest, and their answers, without files, journals and event loop."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence

import grpc

from memory_service.client.connection import Connection
from memory_service.client.remote import RemoteError, remote_error
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

Answers = dict[int, pb.IngestResponse]

_LONGEST_PAUSE_S = 8.0


def send_items(
    address: str, start: pb.IngestStart, items: Sequence[pb.IngestItem], attempts: int = 5
) -> Answers:
    """Sends items, with rising sequence numbers, and returns each one's acknowledgement or failure by that number.

    attempts: connections lost in a row, without an answer in between. Raises RemoteError when the service refuses the
    stream, or stays away, for good.
    """
    answers: Answers = {}
    lost = 0
    with Connection().blocking_channel(address) as channel:
        while True:
            waiting = [item for item in items if item.sequence not in answers]
            before = len(answers)
            try:
                _stream(channel, start, waiting, answers)
                return answers
            except grpc.RpcError as error:
                refused = remote_error(error, address)
                lost = 1 if len(answers) > before else lost + 1
                if not refused.retryable or lost >= attempts:
                    raise refused from error
                time.sleep(min(0.25 * 2**lost, _LONGEST_PAUSE_S))


def _stream(
    channel: grpc.Channel, start: pb.IngestStart, items: Sequence[pb.IngestItem], answers: Answers
) -> None:
    """One stream; items go once it is open, so that a refusal keeps its reason."""
    opened: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def requests() -> Iterator[pb.IngestRequest]:
        yield pb.IngestRequest(start=start)
        if opened.get():
            for item in items:
                yield pb.IngestRequest(item=item)

    try:
        for response in ingestion_pb2_grpc.IngestionStub(channel).Ingest(requests()):
            kind = response.WhichOneof("message")
            if kind == "started":
                opened.put(True)
            elif kind == "acknowledged":
                answers[response.acknowledged.sequence] = response
            elif kind == "failed":
                answers[response.failed.sequence] = response
    finally:
        opened.put(False)  # lets the thread that sends end, where the stream was never opened
    if missing := sum(item.sequence not in answers for item in items):
        raise RemoteError(f"the service left {missing} items without an answer", grpc.StatusCode.INTERNAL)
