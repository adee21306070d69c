from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from deploy.bench.shaper import RETRANSMISSION_MS, Line, Link, serve


def test_a_segment_arrives_half_a_round_trip_later():
    assert Line(Link(rtt_ms=50), seed=0).arrival(10.0, 1000) == pytest.approx(10.025)


def test_bandwidth_makes_segments_wait_for_those_before():
    line = Line(Link(bandwidth_mbit=8), seed=0)  # a megabyte a second
    assert line.arrival(0.0, 1_000_000) == pytest.approx(1.0)
    assert line.arrival(0.0, 500_000) == pytest.approx(1.5)
    assert line.arrival(9.0, 500_000) == pytest.approx(9.5), "an idle line does not save up bandwidth"


def test_a_lost_segment_is_sent_again_and_holds_up_those_behind_it():
    line = Line(Link(rtt_ms=20, loss=0.999999), seed=0)
    late = line.arrival(0.0, 1000)
    assert late == pytest.approx((10 + RETRANSMISSION_MS + 20) / 1000)
    assert line.arrival(0.0, 0) >= late


class Echo:
    """A server that answers with what it got, until the client ends."""

    async def __aenter__(self) -> Echo:
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self.server.close()


@contextlib.asynccontextmanager
async def shaped(target: str, link: Link):
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(target, link, port.set_result))
    try:
        yield await port
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def talk(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_bytes_pass_unchanged_through_every_kind_of_link():
    data = os.urandom(300_000)
    link = Link(rtt_ms=2, bandwidth_mbit=1000, loss=0.001)
    async with Echo() as echo, shaped(echo.address, link) as port:
        assert await asyncio.gather(talk(port, data), talk(port, data[:7])) == [data, data[:7]]
