"""The client of Ingestion.Ingest: documents up, outcomes down, through lost connections and a store that is away."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator

import grpc

from memory_service.client.connection import Connection, RemoteError, details_of, remote_error
from memory_service.client.destination import Destination, pieces
from memory_service.client.rows import Row
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

_WINDOW = 256
"""Documents that are sent and not answered."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_LOOK_AGAIN_S = 0.01


class Ingestion:
    """One ingestion into one knowledge base. Use once, from one thread; `interrupt` may be called from any.

    The service answers documents that it has already as unchanged. A lost connection and a failure that the service
    calls retryable are tried again, after RetryInfo or a pause that doubles, up to `attempts` times in a row without an
    answer in between.
    """

    def __init__(self, to: Destination, *, attempts: int = 10) -> None:
        """attempts: ten are some 45 s, in which a service loads its model and store."""
        self._to = to
        self._attempts = attempts
        self._message_bytes = 0
        self._source: Iterator[Row] = iter(())
        self._broken: Exception | None = None  # what reading the source raised
        self._reading = threading.Lock()  # of the source: a stream that was lost may still be asking it
        self._sequence = 0
        self._unanswered: dict[int, Row] = {}
        self._unsent: deque[Row] = deque()  # read with their outcome
        self._stop = threading.Event()

    def interrupt(self) -> None:
        """Sends no more documents; `run` ends when those under way are answered."""
        self._stop.set()

    def run(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Ingests the rows and yields each with its outcome. Raises RemoteError where it cannot go on."""
        self._source = iter(rows)
        lost = 0
        with Connection().channel(self._to.address) as channel:
            while True:
                refused: dict[int, pb.IngestResponse] = {}  # retryable failures, to be sent again
                problem: RemoteError | None = None
                try:
                    for row in self._stream(channel, refused):
                        lost = 0
                        yield row
                except grpc.RpcError as error:
                    problem = remote_error(error, self._to.address)
                if self._broken is not None:
                    raise self._broken
                if problem is None and (self._stop.is_set() or not refused):
                    return
                lost += 1
                if problem is not None and (not problem.retryable or lost >= self._attempts):
                    raise problem
                if lost >= self._attempts:  # nothing but refusals: they are final now
                    yield from (self._unanswered.pop(n).answered(response) for n, response in refused.items())
                    lost = 0
                    continue
                pauses_s = [details_of(one.failed.status)[1] for one in refused.values()]
                pauses_s.append(problem.retry_after_s if problem else 0.0)
                own_s = min(_FIRST_PAUSE_S * 2 ** (lost - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1)
                if self._stop.wait(max(own_s, *pauses_s)):
                    return

    def _stream(self, channel: grpc.Channel, refused: dict[int, pb.IngestResponse]) -> Iterator[Row]:
        """One stream: what the last one left unanswered, then the rest, until something is to be sent again."""
        opened, over = threading.Event(), threading.Event()
        if not self._message_bytes:
            self._message_bytes = int(self._to.describe().limits.request_bytes)
        call = ingestion_pb2_grpc.IngestionStub(channel).Ingest(self._requests(opened, over))
        try:
            for response in call:
                kind = response.WhichOneof("message")
                if kind == "failed" and response.failed.retryable:
                    refused[response.failed.sequence] = response
                    over.set()  # sends no more: the next stream begins with these
                elif kind in ("acknowledged", "failed"):
                    row = self._unanswered.pop(getattr(response, kind).sequence, None)
                    if row is not None:
                        yield row.answered(response)
                opened.set()
                while self._unsent:
                    yield self._unsent.popleft()
        finally:
            over.set()
            opened.set()
            call.cancel()
        while self._unsent:
            yield self._unsent.popleft()
        if missing := len(self._unanswered) - len(refused):
            raise RemoteError(
                f"the service left {missing} documents without an answer", grpc.StatusCode.UNAVAILABLE
            )

    # In the thread that sends

    def _requests(self, opened: threading.Event, over: threading.Event) -> Iterator[pb.IngestRequest]:
        """Must not fail: a stream whose requests fail only says that it was cancelled."""
        yield pb.IngestRequest(start=self._to.start())
        opened.wait()  # so that a refusal keeps its reason
        with self._reading:
            again = sorted(self._unanswered.items())
        for sequence, row in again:
            yield from self._messages(sequence, row)
        while (following := self._next(over)) is not None:
            yield from self._messages(*following)

    def _next(self, over: threading.Event) -> tuple[int, Row] | None:
        """The next document to send, once there is room; None at the end of the source or of the stream."""
        with self._reading:
            while not (over.is_set() or self._stop.is_set()):
                if len(self._unanswered) >= _WINDOW:
                    over.wait(_LOOK_AGAIN_S)
                    continue
                try:
                    row = next(self._source, None)
                except Exception as error:
                    self._broken = error
                    return None
                if row is None:
                    return None
                if row.item is not None:
                    self._sequence += 1
                    self._unanswered[self._sequence] = row
                    return self._sequence, row
                self._unsent.append(row)
        return None

    def _messages(self, sequence: int, row: Row) -> Iterator[pb.IngestRequest]:
        assert row.item is not None, "rows without an item are not sent"
        row.item.sequence = sequence
        for item in pieces(row.item, self._message_bytes):
            yield pb.IngestRequest(item=item)
