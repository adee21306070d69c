"""Recall beside decoding: a thread for each recall embeds, calls and decompresses while the decoder goes on.

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
from concurrent.futures import Future, InvalidStateError, TimeoutError
from dataclasses import replace

from edge_client.cancellation import Cancellation
from edge_client.errors import described
from edge_client.recall.recaller import LocalSource, Recall, Recaller, without

RECALLS = 32
"""Recalls under way at a time, of all answers: they wait for the service together, and compute one after the other."""
CLOSED = "the model was closed"
_LAST_S = 5.0  # a cancelled recall ends its embedding first


class Ticket:
    """One submitted recall, made by `RecallWorker.submit`. Thread-safe. queries: as submitted. Resolved once."""

    def __init__(self, queries: Sequence[str]) -> None:
        self.queries = tuple(queries)
        self.cancellation = Cancellation()
        self._future: Future[list[Recall]] = Future()
        self._late = False

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> list[Recall]:
        """One Recall for every query; waits at most `timeout_s`, or with None until the ticket is resolved.

        After the timeout the Recalls have state "late" and reason DEADLINE_EXCEEDED; a later call may find them, and
        their state is then "late" with an empty error.
        """
        try:
            found = self._future.result(None if timeout_s is None else max(timeout_s, 0.0))
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
            self._future.set_result(recalls)


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
                ticket.skip("MODEL_CLOSED", CLOSED)
            elif not queries:
                ticket.resolve([])
            elif len(self._under_way) >= self._most:
                ticket.skip("BUSY", f"{len(self._under_way)} recalls are under way already")
            else:
                self._under_way[ticket] = thread
                try:
                    thread.start()
                except RuntimeError as error:  # the system gives no more threads
                    del self._under_way[ticket]
                    ticket.skip("BUSY", str(error))
        return ticket

    def close(self) -> None:
        """Resolve what is under way as "skipped", end its calls, and wait for the threads. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._under_way.items())
        for ticket, _ in left:
            ticket.cancel(CLOSED)
        for _, thread in left:
            thread.join(_LAST_S)

    def _serve(self, ticket: Ticket, deadline_s: float, also: LocalSource | None) -> None:
        try:
            if not ticket.done():
                found = self._recaller.recall(
                    ticket.queries, deadline_s=deadline_s, cancellation=ticket.cancellation, also=also
                )
                ticket.resolve(found)
        except Exception as error:  # a fault of ours must cost a chunk, not all recalls to come
            reason, _, message = described(error).partition(": ")
            ticket.resolve(without(ticket.queries, reason, message, "failed"))
        finally:
            with self._lock:
                self._under_way.pop(ticket, None)
