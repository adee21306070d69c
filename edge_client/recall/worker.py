"""Recall beside decoding: worker threads embed, call and decompress while the decoder goes on.

    session                                   worker thread
    ticket = worker.submit([query])  ----->   embed, call the service, check, decompress   (recall.recaller)
    … decodes `lead_tokens` more …
    ticket.done()?  inject(result)   <-----   Recalls, resolved once
    not yet? decodes on, injects when it is done: state "late"

The recalls of all running answers share the threads, and through the recaller one connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, TimeoutError
from dataclasses import replace
from typing import Protocol

from edge_client.cancellation import Cancellation
from edge_client.errors import described
from edge_client.recall.policy import RecallPolicy
from edge_client.recall.recaller import Recall, without

WAITING_RECALLS = 32
"""Recalls that may wait for a thread; a further one is skipped: its chunk would be over before its turn."""
CLOSED = "the model was closed"
THREADS = 16
"""Recalls under way at a time. They wait for the service together, and compute one after the other."""


class Recalling(Protocol):
    """What a worker thread calls; `recall.recaller.Recaller` is one. Never raises for a chunk."""

    def recall(
        self, queries: Sequence[str], *, deadline_s: float | None = None, queued_s: float = 0.0,
        cancellation: Cancellation | None = None,
    ) -> list[Recall]:  # fmt: skip
        """One Recall for every query."""
        ...


class Ticket:
    """One submitted recall, made by `RecallWorker.submit`. Thread-safe.

    queries: as submitted. deadline_s: from submission. It is resolved exactly once, at the latest when the worker is
    closed.
    """

    def __init__(self, queries: Sequence[str], deadline_s: float, submitted_s: float) -> None:
        self.queries = tuple(queries)
        self.deadline_s, self.submitted_s = deadline_s, submitted_s
        self.cancellation = Cancellation()
        self.future: Future[list[Recall]] = Future()
        self._late = False

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self.future.done()

    def result(self, timeout_s: float | None = None) -> list[Recall]:
        """One Recall for every query; waits at most `timeout_s`, or with None until the ticket is resolved.

        After the timeout the Recalls have state "late" and reason DEADLINE_EXCEEDED; a later call may find them, and
        their state is then "late" with an empty error.
        """
        try:
            found = self.future.result(None if timeout_s is None else max(timeout_s, 0.0))
        except TimeoutError:
            self._late = True
            message = f"no memories {timeout_s or 0:g} s after they were needed"
            return without(self.queries, "DEADLINE_EXCEEDED", message, "late")
        return [replace(r, state="late") if self._late and not r.error else r for r in found]

    def cancel(self, why: str = "the answer was ended before its memories came") -> None:
        """Resolve it now as "skipped", and end a call that is under way."""
        self.skip("CANCELLED", why)
        self.cancellation.cancel()

    def skip(self, reason: str, why: str) -> None:
        """Resolve it without memories, unless it is resolved."""
        self.resolve(without(self.queries, reason, why, "skipped"))

    def resolve(self, recalls: list[Recall]) -> None:
        """Set the result; only the first call counts."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(recalls)


class RecallWorker:
    """Threads that recall for all sessions of a model, begun in the order of submission. Thread-safe.

    `submit` never blocks and never raises for a chunk. A worker that is dropped ends its threads as `close` does, but
    lets a call that is under way run to its deadline. Do not fork with one open.

    recaller: called by several threads at a time. waiting: recalls that may queue. threads: at most, started when
    they are needed. clock: seconds, replaced in tests.
    """

    def __init__(
        self, recaller: Recalling, *, policy: RecallPolicy | None = None, waiting: int = WAITING_RECALLS,
        threads: int = THREADS, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.policy = policy or RecallPolicy()
        self.closed = False
        self._recaller, self._clock, self._most = recaller, clock, waiting
        self._lock = threading.Lock()
        self._waiting: set[Ticket] = set()
        self._served: set[Ticket] = set()
        self._executor = ThreadPoolExecutor(threads, "memory3-recall")

    def submit(self, queries: Sequence[str], *, deadline_s: float | None = None) -> Ticket:
        """Request the memories of `queries`; deadline_s from now on, by default the policy's for a chunk."""
        deadline_s = self.policy.chunk_deadline_s if deadline_s is None else deadline_s
        ticket = Ticket(queries, deadline_s, self._clock())
        with self._lock:
            self._waiting = {t for t in self._waiting if not t.done()}  # those that were cancelled
            if self.closed:
                ticket.skip("MODEL_CLOSED", CLOSED)
            elif not queries:
                ticket.resolve([])
            elif len(self._waiting) >= self._most:
                ticket.skip("BUSY", f"{len(self._waiting)} recalls wait already")
            else:
                self._waiting.add(ticket)
                self._executor.submit(self._serve, ticket)
        return ticket

    def close(self) -> None:
        """Resolve what waits as "skipped", end the calls that are under way, and wait for the threads. Idempotent."""
        with self._lock:
            self.closed = True
            left = [*self._waiting, *self._served]
        for ticket in left:
            ticket.cancel(CLOSED)
        self._executor.shutdown(cancel_futures=True)

    def _serve(self, ticket: Ticket) -> None:
        with self._lock:
            self._waiting.discard(ticket)
            if ticket.done():
                return
            self._served.add(ticket)
        queued_s = self._clock() - ticket.submitted_s
        try:
            if queued_s >= ticket.deadline_s:
                why = f"it waited {ticket.deadline_s:g} s for other recalls of this device"
                ticket.skip("DEADLINE_EXCEEDED", why)
            else:
                ticket.resolve(
                    self._recaller.recall(
                        ticket.queries, deadline_s=ticket.deadline_s, queued_s=queued_s,
                        cancellation=ticket.cancellation,
                    )
                )  # fmt: skip
        except Exception as error:  # a fault of ours must cost a chunk, not all recalls to come
            reason, _, message = described(error).partition(": ")
            ticket.resolve(without(ticket.queries, reason, message, "failed"))
        finally:
            with self._lock:
                self._served.discard(ticket)
