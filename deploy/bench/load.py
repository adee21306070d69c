"""Load: calls at a fixed rate whatever the answers do (open), or from clients that wait for each answer (closed).

An open loop measures from the moment at which a call was due, not from when it was really sent. So a server that
stalls is charged for all calls that fell due meanwhile; measuring from the sending would leave those out
(coordinated omission: Tene, "How NOT to measure latency"). A closed loop tells the most a number of clients can get.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.bench.latency import Latencies

IN_FLIGHT = 1000
"""Calls of an open loop that may be unanswered at once; further ones wait here, and their waiting is counted."""

Stages = Mapping[str, float]
Call = Callable[[int], Awaitable[Stages | None]]
"""One call, given its number; returns seconds by stage if it knows them, raises if it fails."""


@dataclass
class Load:
    """What a load met. seconds: from the first call due to the last answer. errors: by what was raised.

    latencies: of answered calls, open loops from when they were due. lateness: how late calls were sent: high
    values mean that the client, not the server, could not keep up. stages: what the calls told of themselves.
    """

    offered_per_s: float | None
    seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    lateness: Latencies = field(default_factory=Latencies)
    stages: dict[str, Latencies] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def answered_per_s(self) -> float:
        """Throughput of successful calls."""
        return self.latencies.count / self.seconds if self.seconds else 0.0

    def summary(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "offered_per_s": self.offered_per_s,
            "answered_per_s": round(self.answered_per_s, 2),
            "seconds": round(self.seconds, 3),
            "errors": dict(self.errors),
            "latency": self.latencies.summary(),
            "lateness": self.lateness.summary(),
            "stages": {name: latencies.summary() for name, latencies in self.stages.items()},
        }


async def open_loop(call: Call, *, per_s: float, seconds: float, in_flight: int = IN_FLIGHT) -> Load:
    """`per_s` x `seconds` calls, each due at its time whether or not those before it have been answered."""
    if per_s <= 0 or seconds <= 0:
        raise ValueError(f"a load needs a positive rate and duration, not {per_s} for {seconds} s")
    load = Load(per_s)
    slots = asyncio.Semaphore(in_flight)
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(max(1, round(per_s * seconds))):
            due = began + number / per_s
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            await slots.acquire()
            load.lateness.add(time.perf_counter() - due)
            group.create_task(_timed(call, number, due, load)).add_done_callback(lambda _: slots.release())
    # The last call's own share of time is waited for, too: n calls at n/s are a second, however fast the last is.
    load.seconds = max(time.perf_counter() - began, (load.latencies.count + load.errors.total()) / per_s)
    return load


async def closed_loop(call: Call, *, clients: int, seconds: float) -> Load:
    """Clients that each call again as soon as they are answered, for `seconds`."""
    if clients < 1 or seconds <= 0:
        raise ValueError(f"a load needs clients and a positive duration, not {clients} for {seconds} s")
    load = Load(None)
    began = time.perf_counter()

    async def client(number: int) -> None:
        while (now := time.perf_counter()) < began + seconds:
            await _timed(call, number, now, load)
            number += clients

    await asyncio.gather(*(client(number) for number in range(clients)))
    load.seconds = time.perf_counter() - began
    return load


async def _timed(call: Call, number: int, since: float, load: Load) -> None:
    """One call into `load`; a failure is counted by its name and never ends the load."""
    try:
        stages = await call(number)
    except Exception as error:
        load.errors[error_name(error)] += 1
        return
    load.latencies.add(time.perf_counter() - since)
    for name, spent in (stages or {}).items():
        load.stages.setdefault(name, Latencies()).add(spent)


def error_name(error: BaseException) -> str:
    """A gRPC status by its name, anything else by its class."""
    code = getattr(error, "code", None)
    status = code() if callable(code) else None
    return str(getattr(status, "name", "") or type(error).__name__)
