from __future__ import annotations

import asyncio
import os

import pytest

from deploy.bench.shaper import RETRANSMISSION_MS, Line, Link, serve


def test_segments_arrive_half_a_round_trip_later_and_behind_those_before():
    assert Line(Link(rtt_ms=50), seed=0).arrival(10.0, 1000) == pytest.approx(10.025)
    line = Line(Link(bandwidth_mbit=8), seed=0)  # a megabyte a second
    assert line.arrival(0.0, 1_000_000) == pytest.approx(1.0)
    assert line.arrival(0.0, 500_000) == pytest.approx(1.5)
    assert line.arrival(9.0, 500_000) == pytest.approx(9.5), "an idle line does not save up bandwidth"


def test_a_lost_segment_is_sent_again_and_holds_up_those_behind_it():
    line = Line(Link(rtt_ms=20, loss=0.999999), seed=0)
    late = line.arrival(0.0, 1000)
    assert late == pytest.approx((10 + RETRANSMISSION_MS + 20) / 1000)
    assert line.arrival(0.0, 0) >= late


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read())
    writer.close()


async def talk(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_bytes_pass_unchanged_through_every_kind_of_link():
    data, link = os.urandom(300_000), Link(rtt_ms=2, bandwidth_mbit=1000, loss=0.001)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as target:
        host, number = target.sockets[0].getsockname()
        task = asyncio.create_task(serve(f"{host}:{number}", link, port.set_result))
        assert await asyncio.gather(talk(await port, data), talk(await port, data[:7])) == [data, data[:7]]
        task.cancel()
