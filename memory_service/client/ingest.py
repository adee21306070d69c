"""The client of Ingestion.Ingest: documents up, outcomes down, through lost connections and a store that is away."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from memory_service.client.connection import Connection, RemoteError, details_of, remote_error
from memory_service.client.destination import Destination, pieces
from memory_service.client.rows import Row
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc

_WINDOW = 256
"""Documents that are sent and not answered."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0


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
        self._reading = threading.Lock()  # of the source, and of new entries of `_unanswered`
        self._sequence = 0
        self._unanswered: dict[int, Row] = {}
        self._refused: dict[int, pb.IngestResponse] = {}  # retryable failures, to be sent again
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
                pause_s, problem = 0.0, None
                try:
                    for row in self._stream(channel):
                        lost = 0
                        yield row
                except RemoteError as error:
                    pause_s, problem = error.retry_after_s, error
                if problem is None and (self._stop.is_set() or not self._refused):
                    return
                lost += 1
                if problem is not None and (not problem.retryable or lost >= self._attempts):
                    raise problem
                if lost >= self._attempts:  # nothing but refusals: they are final now
                    yield from (self._unanswered.pop(s).answered(r) for s, r in self._refused.items())
                    self._refused, lost = {}, 0
                    continue
                asked_s = [details_of(one.failed.status)[1] for one in self._refused.values()]
                own_s = min(_FIRST_PAUSE_S * 2 ** (lost - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1)
                pause_s = max(pause_s, own_s, *asked_s)
                self._refused = {}
                if self._stop.wait(pause_s):
                    return

    def _stream(self, channel: grpc.Channel) -> Iterator[Row]:
        """One stream: what the last one left unanswered, then the rest, until something is to be sent again."""
        stream = _Stream()
        if not self._message_bytes:
            self._message_bytes = int(self._to.describe().limits.request_bytes)
        call = ingestion_pb2_grpc.IngestionStub(channel).Ingest(self._requests(stream))
        threading.Thread(target=stream.receive, args=(call,), daemon=True).start()
        try:
            while (event := stream.events.get()) is not None:
                if isinstance(event, Row):
                    yield event
                elif isinstance(event, grpc.RpcError):
                    raise remote_error(event, self._to.address) from event
                elif isinstance(event, Exception):
                    raise event
                elif (row := self._answered(event, stream)) is not None:
                    yield row
        finally:
            stream.over.set()
            stream.opened.set()
            call.cancel()
        if missing := len(self._unanswered) - len(self._refused):
            raise RemoteError(
                f"the service left {missing} documents without an answer", grpc.StatusCode.UNAVAILABLE
            )

    def _answered(self, response: pb.IngestResponse, stream: _Stream) -> Row | None:
        kind = response.WhichOneof("message")
        if kind == "started":
            stream.opened.set()
        if kind == "failed" and response.failed.retryable:
            self._refused[response.failed.sequence] = response
            stream.over.set()  # sends no more: the next stream begins with these
            return None
        if kind not in ("acknowledged", "failed"):
            return None
        row = self._unanswered.pop(getattr(response, kind).sequence, None)
        if row is None:
            return None
        stream.window.release()
        return row.answered(response)

    # In the thread that sends

    def _requests(self, stream: _Stream) -> Iterator[pb.IngestRequest]:
        """Must not fail: a stream whose requests fail only says that it was cancelled."""
        yield pb.IngestRequest(start=self._to.start())
        stream.opened.wait()  # so that a refusal keeps its reason
        with self._reading:
            again = sorted(self._unanswered.items())
        for sequence, row in again:
            stream.window.acquire(blocking=False)
            yield from self._messages(sequence, row)
        while not self._stop.is_set() and not stream.over.is_set():
            if not stream.window.acquire(timeout=0.2):
                continue
            try:
                following = self._next(stream)
            except Exception as error:
                stream.events.put(error)
                return
            if following is None:
                return
            yield from self._messages(*following)

    def _next(self, stream: _Stream) -> tuple[int, Row] | None:
        """The next document to send; those that need no sending are answered here."""
        with self._reading:
            while not stream.over.is_set():
                row = next(self._source, None)
                if row is None:
                    return None
                if row.item is not None:
                    self._sequence += 1
                    self._unanswered[self._sequence] = row
                    return self._sequence, row
                stream.events.put(row)
        return None

    def _messages(self, sequence: int, row: Row) -> Iterator[pb.IngestRequest]:
        assert row.item is not None, "rows without an item are not sent"
        row.item.sequence = sequence
        for item in pieces(row.item, self._message_bytes):
            yield pb.IngestRequest(item=item)


class _Stream:
    """What the threads of one stream share. events: responses, rows that were not sent, errors, None at the end."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.window = threading.Semaphore(_WINDOW)
        self.opened = threading.Event()
        self.over = threading.Event()

    def receive(self, call: Iterator[pb.IngestResponse]) -> None:
        """Passes on what the service sends."""
        try:
            for response in call:
                self.events.put(response)
            self.events.put(None)
        except Exception as error:
            self.events.put(error)
