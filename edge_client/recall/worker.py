"""Recall beside decoding: a background thread embeds, asks and decompresses while the decoder goes on.

    session                                   worker thread
    ticket = worker.submit([query])  ----->   embed, call the service, check, decompress   (edge_client.recall.recaller)
    … decodes `lead_tokens` more …
    ticket.done()?  inject(result)   <-----   Recalls, resolved once
    not yet? decodes on, injects when it is done: state "late"

Another thread is started, up to a few, when a recall would have to wait for another session's: a call that hangs
costs its own session alone. Knows nothing about models and wires: what a Recaller does happens in the thread.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from edge_client.cancellation import Cancellation
from edge_client.recall.recaller import Recall
from memory_model.errors import InvalidInput

WAITING_RECALLS = 32
"""Recalls that may wait for the worker; one more is skipped, because by then nobody will want it."""
THREADS = 4
"""Recalls under way at a time. They wait for the service at the same time, and compute one after the other."""
CLOSING_S = 5.0
"""How long `close` waits for the threads. What it may be in then (an embedding, a decoding) takes milliseconds."""


class RecallMode(str, Enum):
    """How decoding and recalling share time. Every mode reads the same memories, only later or never.

    overlap: asks `lead_tokens` before a chunk ends and never waits; what comes late is swapped in late.
    exact: waits at every chunk's end, as the paper does. off: never asks.
    """

    overlap = "overlap"
    exact = "exact"
    off = "off"


@dataclass(frozen=True)
class RecallPolicy:
    """When a session asks and how long it waits.

    lead_tokens: generated tokens before a chunk's end at which `overlap` asks for the next chunk's memories.
    prompt_deadline_s: longest wait for a prompt's memories; the first token is not chosen without them.
    chunk_deadline_s: longest life of a generated chunk's recall; `exact` waits so long, `overlap` gives up then.
    hedge_after_s: a request unanswered for so long is sent once more; None estimates it from recent answers,
    infinity never does (see `edge_client.wire.hedge`).
    """

    mode: RecallMode = RecallMode.overlap
    lead_tokens: int = 16
    prompt_deadline_s: float = 2.0
    chunk_deadline_s: float = 2.0
    hedge_after_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no session can follow."""
        if self.lead_tokens < 0:
            raise InvalidInput(f"lead_tokens must be 0 or more, not {self.lead_tokens}")
        if not (self.prompt_deadline_s > 0 and self.chunk_deadline_s > 0):
            raise InvalidInput("deadlines must be positive: a recall without one could wait for ever")
        if self.hedge_after_s is not None and not self.hedge_after_s > 0:
            raise InvalidInput(f"hedge_after_s must be positive, not {self.hedge_after_s}")


class Recalling(Protocol):
    """What the worker's thread does for a ticket; `recall.recaller.Recaller` is one. Never raises for a chunk."""

    def recall(
        self,
        queries: Sequence[str],
        *,
        deadline_s: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> list[Recall]:
        """One Recall for every query."""
        ...  # fmt: skip


class Ticket:
    """One submitted recall. Made by `RecallWorker.submit`; any thread may use it.

    queries: as submitted. It is resolved exactly once, at the latest when its deadline is over or the worker is
    closed, so that waiting for it always ends.
    """

    def __init__(self, queries: Sequence[str], deadline_s: float, clock: Callable[[], float]) -> None:
        self.queries = tuple(queries)
        self.deadline_s = deadline_s
        self.cancellation = Cancellation()
        self._clock = clock
        self._submitted = clock()
        self._lock = threading.Lock()
        self._resolved = threading.Event()
        self._recalls: list[Recall] = []
        self._missed = False

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline_s - (self._clock() - self._submitted)

    def done(self) -> bool:
        """Whether `result` would return at once. Costs nothing: a decode loop may ask at every token."""
        return self._resolved.is_set()

    def result(self, timeout_s: float | None = None) -> list[Recall]:
        """One Recall for every query; waits at most `timeout_s`, None until the ticket is resolved.

        When the time is over the Recalls have state "late" and an error that begins with DeadlineExceeded; ask
        again later. Once a ticket has been late, what it finds in the end is "late" too, with an empty error.
        """
        if not self._resolved.wait(None if timeout_s is None else max(timeout_s, 0.0)):
            with self._lock:
                if not self._resolved.is_set():
                    self._missed = True
                    waited = f"DeadlineExceeded: no memories {timeout_s or 0:g} s after they were needed"
                    return [Recall(q, error=waited, state="late") for q in self.queries]
        found = list(self._recalls)
        if self._missed:
            found = [r if r.error else replace(r, state="late") for r in found]
        return found

    def cancel(self) -> None:
        """Nobody wants it any more: it is resolved at once as "skipped", and a call that is under way is ended."""
        self.resolve(_skipped(self.queries, "Cancelled: the answer was ended before its memories came"))
        self.cancellation.cancel()

    def resolve(self, recalls: Sequence[Recall]) -> None:
        """Set the result; the worker's part. Only the first call counts."""
        with self._lock:
            if not self._resolved.is_set():
                self._recalls = list(recalls)
                self._resolved.set()


class RecallWorker:
    """Daemon threads that recall for all sessions of a model, begun in the order of submission.

    Thread-safe. `submit` never blocks and never raises for a chunk. `close` resolves all tickets and ends the
    threads; it also happens when the worker is dropped or the program ends. Do not fork with one open.

    recaller: what the threads call, at the same time. waiting: recalls that may queue. threads: at most; all but
    the first are started when they are needed. clock: seconds, replaced in tests.
    """

    def __init__(
        self, recaller: Recalling, *, policy: RecallPolicy | None = None, waiting: int = WAITING_RECALLS,
        threads: int = THREADS, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.policy = policy or RecallPolicy()
        self._clock = clock
        self._line = _Line(recaller, waiting, threads)
        self._line.start_thread()
        # The threads hold the line, not the worker: a worker that nobody holds any more is closed by this.
        self._closing = weakref.finalize(self, _close, self._line)

    def submit(self, queries: Sequence[str], *, deadline_s: float | None = None) -> Ticket:
        """Ask for the memories of `queries`; deadline_s from now on, by default the policy's for a chunk."""
        ticket = Ticket(
            queries, self.policy.chunk_deadline_s if deadline_s is None else deadline_s, self._clock
        )
        why_not = "" if queries else "Nothing: no query"
        why_not = why_not or self._line.join(ticket)
        if why_not:
            ticket.resolve(_skipped(queries, why_not))
        return ticket

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._line.closed

    def close(self) -> None:
        """Resolve what waits as "skipped", end the calls that are under way, and wait for the threads; idempotent."""
        self._closing()


class _Line:
    """Tickets that wait, those that are served, and the threads that serve them."""

    def __init__(self, recaller: Recalling, longest: int, most_threads: int) -> None:
        self.recaller = recaller
        self.longest, self.most_threads = longest, most_threads
        self.waiting: deque[Ticket] = deque()
        self.served: set[Ticket] = set()
        self.threads: list[threading.Thread] = []
        self.closed = False
        self.changed = threading.Condition()

    def join(self, ticket: Ticket) -> str:
        """Stand at the end; returns why that is impossible, or nothing."""
        with self.changed:
            if self.closed:
                return "Closed: the model was closed"
            while self.waiting and self.waiting[0].done():  # cancelled ones take no place
                self.waiting.popleft()
            if len(self.waiting) >= self.longest:
                return f"Busy: {len(self.waiting)} recalls wait already"
            self.waiting.append(ticket)
            free = len(self.threads) - len(self.served)
            if free < len(self.waiting) and len(self.threads) < self.most_threads:
                self.start_thread()
            self.changed.notify()
            return ""

    def start_thread(self) -> None:
        """One more that serves."""
        name = f"memory3-recall-{len(self.threads)}"
        self.threads.append(threading.Thread(target=_work, args=(self,), name=name, daemon=True))
        self.threads[-1].start()

    def next(self) -> Ticket | None:
        """The first ticket, waiting for one if need be; None when the line is closed."""
        with self.changed:
            while not self.waiting and not self.closed:
                self.changed.wait()
            if self.closed:
                return None
            ticket = self.waiting.popleft()
            self.served.add(ticket)
            return ticket

    def leave(self, ticket: Ticket) -> None:
        """It was served."""
        with self.changed:
            self.served.discard(ticket)


def _work(line: _Line) -> None:
    """A thread: one ticket after the other, until the line is closed."""
    while (ticket := line.next()) is not None:
        if not ticket.done():
            ticket.resolve(_served(ticket, line.recaller))
        line.leave(ticket)
        del ticket  # memories of megabytes are not kept until the next one


def _served(ticket: Ticket, recaller: Recalling) -> list[Recall]:
    remaining_s = ticket.remaining_s
    if remaining_s <= 0:
        why = f"DeadlineExceeded: it waited {ticket.deadline_s:g} s for other recalls of this device"
        return _skipped(ticket.queries, why)
    queue_ms = round(1e3 * (ticket.deadline_s - remaining_s) / len(ticket.queries), 3)
    try:
        found = recaller.recall(ticket.queries, deadline_s=remaining_s, cancellation=ticket.cancellation)
    except Exception as error:  # a fault of ours must cost a chunk, not all recalls to come
        why = f"{type(error).__name__}: {error}"
        return [Recall(q, error=why, state="failed") for q in ticket.queries]
    return [replace(r, times=replace(r.times, queue_ms=queue_ms)) for r in found]


def _close(line: _Line) -> None:
    with line.changed:
        line.closed = True
        left = [*line.waiting, *line.served]
        line.waiting.clear()
        line.changed.notify_all()
    for ticket in left:
        ticket.resolve(_skipped(ticket.queries, "Closed: the model was closed"))
        ticket.cancellation.cancel()
    end = time.monotonic() + CLOSING_S
    for thread in line.threads:
        if thread is not threading.current_thread():
            thread.join(max(end - time.monotonic(), 0.0))


def _skipped(queries: Sequence[str], why: str) -> list[Recall]:
    return [Recall(q, error=why, state="skipped") for q in queries]
