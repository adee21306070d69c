"""A TCP proxy that makes loopback as slow as a network: round-trip time and bandwidth, without privileges.

    with shaped_network("127.0.0.1:7430", Link(rtt_ms=50, bandwidth_mbit=20)) as address:
        EdgeModel.open(bundle, service=address)

Each direction of a connection is a queue with a transmission time and a delay; bytes stay in order.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.bench.processes import Ready, side_process

SEGMENT_BYTES = 16 << 10
"""Bytes that travel together; small against what a link of 20 Mbit/s carries in 10 ms."""
EARLIEST_S = 1e-7
"""Between two segments, so that timers keep their order."""


@dataclass(frozen=True)
class Link:
    """A network between device and service.

    rtt_ms: round-trip time, half of it in each direction. bandwidth_mbit: of each direction of each connection;
    None is unlimited.
    """

    rtt_ms: float = 0.0
    bandwidth_mbit: float | None = None


class Line:
    """One direction of a connection as arithmetic: when a segment that was given at a time will arrive.

    Knows nothing about sockets or clocks; times are seconds of any clock.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._free_at = 0.0
        self._last_arrival = 0.0

    def arrival(self, now: float, length: int) -> float:
        """The time of arrival of `length` bytes that are sent at `now`, after all that were sent before."""
        link = self._link
        sending = 8e-6 * length / link.bandwidth_mbit if link.bandwidth_mbit else 0.0
        self._free_at = max(now, self._free_at) + sending
        self._last_arrival = max(self._last_arrival + EARLIEST_S, self._free_at + link.rtt_ms / 2e3)
        return self._last_arrival


async def serve(target: str, link: Link, ready: Ready) -> None:
    """Accept on a free port of loopback, tell it to `ready`, and forward to `target` until cancelled."""
    host, _, port = target.rpartition(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(forward(reader, far_writer, Line(link)), forward(far_reader, writer, Line(link)))
        except OSError:
            pass  # one side is gone: closing ends the other
        finally:
            for side in (writer, far_writer):
                side.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=SEGMENT_BYTES)
    for accepting in server.sockets:
        accepting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ready(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line) -> None:
    """Carry bytes from `reader` to `writer`, each segment at its time of arrival, the end of the stream too."""
    loop = asyncio.get_running_loop()
    while segment := await reader.read(SEGMENT_BYTES):
        loop.call_at(line.arrival(loop.time(), len(segment)), _write, writer, segment)
    await asyncio.sleep(line.arrival(loop.time(), 0) - loop.time())
    if not writer.is_closing():
        writer.write_eof()


def _write(writer: asyncio.StreamWriter, segment: bytes) -> None:
    if not writer.is_closing():
        writer.write(segment)


@contextmanager
def shaped_network(target: str, link: Link) -> Iterator[str]:
    """The address of a shaper in front of `target`, in a process of its own."""
    with side_process(_serve_alone, target, link) as address:
        yield address


def _serve_alone(ready: Ready, target: str, link: Link) -> None:
    asyncio.run(serve(target, link, ready))
