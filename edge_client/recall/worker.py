"""Recall while decoding: a thread for each recall embeds, calls and decompresses while the decoder goes on.

session                                   thread
ticket = worker.submit([query])  ----->   embed, call the service, check, decompress   (recall.recaller)
… decodes `lead_tokens` more …
ticket.done()?  inject(result)   <-----   Recalls, resolved once
not yet? decodes on, injects when it is done: state "late"
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError

from edge_client.errors import Cancellation
from edge_client.recall.outcome import Recall, without
from edge_client.recall.recaller import LocalSource, Recaller

RECALLS = 32
"""Recalls under way at a time, of all answers: they wait for the service together, and compute one after the other."""
CLOSED = "the model was closed"
_LAST_S = 5.0  # a cancelled recall ends its embedding first


class Ticket(Future[list[Recall]]):
    """A submitted recall: a future of one Recall for every query, never of an exception. Thread-safe."""

    def __init__(self, queries: Sequence[str]) -> None:
        super().__init__()
        self.queries = tuple(queries)
        self.cancellation = Cancellation()

    def end(self, why: str = "the answer was ended before its memories came", reason: str = "CANCELLED") -> None:
        """Resolve it now as "skipped", and end a call that is under way."""
        self.resolve(without(self.queries, reason, why, "skipped"))
        self.cancellation.cancel()

    def resolve(self, recalls: list[Recall]) -> None:
        """Set the result; only the first call counts."""
        with contextlib.suppress(InvalidStateError):
            self.set_result(recalls)


class RecallWorker:
    """Recalls for all sessions of a model. Thread-safe.

    `submit` never blocks and never raises for a chunk. Threads are daemons: a program that ends does not wait for them.
    Do not fork with one open. recaller: called by several threads at a time. most: recalls under way.
    """

    def __init__(self, recaller: Recaller, *, most: int = RECALLS) -> None:
        self._recaller, self._most = recaller, most
        self._closed = False
        self._lock = threading.Lock()
        self._under_way: dict[Ticket, threading.Thread] = {}

    def submit(self, queries: Sequence[str], *, deadline_s: float, also: LocalSource | None = None) -> Ticket:
        """Request the memories of `queries`, worth nothing after `deadline_s`; also: see `Recaller.recall`."""
        ticket = Ticket(queries)
        thread = threading.Thread(
            target=self._serve, args=(ticket, deadline_s, also), name="memory3-recall", daemon=True
        )
        with self._lock:
            if self._closed:
                ticket.end(CLOSED, "MODEL_CLOSED")
            elif len(self._under_way) >= self._most:
                ticket.end(f"{len(self._under_way)} recalls are under way already", "BUSY")
            else:
                self._under_way[ticket] = thread
                try:
                    thread.start()
                except RuntimeError as error:  # the system gives no more threads
                    del self._under_way[ticket]
                    ticket.end(str(error), "BUSY")
        return ticket

    def close(self) -> None:
        """Resolve what is under way as "skipped", end its calls, and wait for the threads. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._under_way.items())
        for ticket, _ in left:
            ticket.end(CLOSED)
        for _, thread in left:
            thread.join(_LAST_S)

    def _serve(self, ticket: Ticket, deadline_s: float, also: LocalSource | None) -> None:
        try:
            recall = self._recaller.recall
            ticket.resolve(recall(ticket.queries, deadline_s=deadline_s, cancellation=ticket.cancellation, also=also))
        finally:
            with self._lock:
                self._under_way.pop(ticket, None)
