"""Reads are counted, shown by form, and decide which memories stay."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from memory_service.access.keys import changing
from memory_service.cli import app
from memory_service.encoder import EncoderDescription
from memory_service.errors import StoreUnavailable
from memory_service.ops.reads import ReadCounter
from memory_service.ops.usage import PAPER_BOUNDS, bounds_of
from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import Found, KnowledgeBase, Retrieved
from protos.memory.v1 import ingestion_pb2
from protos.memory.v1 import knowledge_bases_pb2 as pb
from testing.encoders import HashEncoder
from testing.shapes import MEMORY3_2B
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, eventually, ingest_requests, refused, running


def usage(client: Client) -> dict[tuple[bool, int], tuple[int, int]]:
    found = client.bases.GetUsage(pb.GetUsageRequest(name="kb"), timeout=60)
    return {(one.memories_written, one.cheapest): (one.reference_count, one.read_count) for one in found.groups}


def cooled(client: Client, share: float) -> tuple[int, int]:
    request = pb.CoolKnowledgeBaseRequest(name="kb", keep_share=share)
    found = client.bases.CoolKnowledgeBase(request, timeout=60)
    return found.document_count, found.reference_count


def written(client: Client) -> set[str]:
    return {one.document_key for one in client.listed("kb").documents if one.memories_written}


def test_reads_are_counted_and_stay_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path, HashEncoder(), usage_interval_s=3600) as (client, server):
            client.ingest("kb", *(document(f"d{n}", f"Text {n}.") for n in range(4)))
            client.hits("kb", "Text 1.", 1)
            client.hits("kb", "Text 1.", 1, held_ids=[client.hits("kb", "Text 1.", 1)[0].memory_id])
            client.hits("kb", "Text 2.", 1)
    with running(tmp_path, HashEncoder()) as (client, server):
        assert usage(client) == {(True, pb.KNOWLEDGE_FORM_TEXT): (2, 0), (True, pb.KNOWLEDGE_FORM_MEMORY): (2, 8)}
        address = ["--address", f"127.0.0.1:{server.port}"]
        shown = CliRunner().invoke(app, ["kb", "usage", "kb", *address], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert "6  d1 #0" in shown.stdout
        assert "from 0.494 to 13,400 reads" in shown.stdout


def test_a_share_of_the_retrievals_counts_for_all_and_none_where_counting_is_off(tmp_path: Path) -> None:
    with running(tmp_path / "a", HashEncoder(), usage_share=0.25) as (client, _):
        client.ingest("kb", document("d", "Text."))
        for _ in range(200):
            client.hits("kb", "Text.", 1)
        (reads,) = [read for _, read in usage(client).values() if read]
        assert reads % 4 == 0
        assert 80 < reads < 360, "200 in the mean, 24 is a standard deviation"
    with running(tmp_path / "b", HashEncoder(), usage_interval_s=0) as (client, _):
        client.ingest("kb", document("d", "Text."))
        client.hits("kb", "Text.", 1)
        assert usage(client) == {(True, pb.KNOWLEDGE_FORM_TEXT): (1, 0)}


@pytest.mark.parametrize("share", [0.3, 0.4, 0.7])
def test_a_share_that_divides_nothing_counts_as_many_reads_as_there_were(share: float) -> None:
    runtime = SimpleNamespace(settings=SimpleNamespace(usage_interval_s=3600.0, usage_share=share))
    counter = ReadCounter(runtime, Random(0))  # type: ignore[arg-type]
    base = KnowledgeBase(1, "kb", "", HashEncoder().description.identity, datetime.now(timezone.utc))
    retrieved = Retrieved([[Found(1, 0.5, "d", "", 0, 0, None)]], {}, 0, 0)
    for _ in range(20_000):
        counter.count(base, retrieved)
    assert counter._counts[base]["d", 0] == pytest.approx(20_000, rel=0.04)


def test_counts_that_the_store_does_not_take_are_added_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, HashEncoder(), usage_interval_s=3600) as (client, _):
        client.ingest("kb", document("d", "Text."))
        client.hits("kb", "Text.", 1)
        with monkeypatch.context() as broken:
            broken.setattr(LocalStore, "add_reads", lambda *_: (_ for _ in ()).throw(StoreUnavailable("full")))
            assert usage(client) == {(True, pb.KNOWLEDGE_FORM_TEXT): (1, 0)}
        client.hits("kb", "Text.", 1)
        assert usage(client) == {(True, pb.KNOWLEDGE_FORM_MEMORY): (1, 2)}


def test_who_asks_while_reads_are_stored_or_leaves_meanwhile_loses_none() -> None:
    stored: Counter[str] = Counter()

    async def slow(work: str, add: object, base: KnowledgeBase, counts: Counter[tuple[str, int]]) -> None:
        await asyncio.sleep(0.01)
        stored[base.name] += counts.total()

    async def store() -> None:
        settings = SimpleNamespace(usage_interval_s=3600.0, usage_share=1.0)
        runtime = SimpleNamespace(settings=settings, store=SimpleNamespace(add_reads=None), run=slow)
        counter = ReadCounter(runtime)  # type: ignore[arg-type]
        retrieved = Retrieved([[Found(1, 0.5, "d", "", 0, 0, None)]], {}, 0, 0)
        for number in range(4):
            identity = HashEncoder().description.identity
            base = KnowledgeBase(number, f"kb{number}", "", identity, datetime.now(timezone.utc))
            counter.count(base, retrieved)
        leaving = asyncio.create_task(counter.store_all())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(counter.store_all(), counter.store_all())

    asyncio.run(store())
    assert stored == {f"kb{number}": 1 for number in range(4)}


def test_late_memories_are_written_only_when_read_where_the_background_writes_none(tmp_path: Path) -> None:
    encoder = HashEncoder()
    with running(tmp_path, encoder, cold_background=False, warm_up=False, cold_wait_s=60) as (client, _):
        requests = ingest_requests("kb", [document(f"d{n}", f"Text {n}.") for n in range(20)])
        requests[0].start.memory_writing = ingestion_pb2.MEMORY_WRITING_LATER
        list(client.ingestion.Ingest(iter(requests), timeout=60))
        assert client.hits("kb", "Text 7.", 1)[0].payload
        eventually(lambda: written(client) == {"d7"})
        assert encoder.encoded == 1


def test_the_memories_of_the_most_read_stay_and_a_read_writes_a_dropped_one_again(tmp_path: Path) -> None:
    settings = {"cold_background": False, "cold_wait_s": 60}
    with running(tmp_path, HashEncoder(), **settings) as (client, _):
        client.ingest("kb", *(document(f"d{n}", f"Text {n}.") for n in range(10)))
        before = client.hits("kb", "Text 3.", 1)[0]
        for number in (1, 1, 1, 2, 2):
            client.hits("kb", f"Text {number}.", 1)
        assert cooled(client, 1.0) == (7, 7), "those that nobody read"
        assert written(client) == {"d1", "d2", "d3"}
        assert cooled(client, 0.2) == (1, 1)
        assert written(client) == {"d1", "d2"}
        again = client.hits("kb", "Text 3.", 1, return_text=True)[0]
        assert (again.payload, again.memory_id) == (before.payload, before.memory_id)
        eventually(lambda: written(client) == {"d1", "d2", "d3"})


def test_a_tenant_at_its_quota_is_cooled_all_the_same(tmp_path: Path) -> None:
    """A memory that may be written again counts as the longest there is, so dropping one needs more of the quota."""
    keys = tmp_path / "keys.json"
    secret, encoder = new_key(keys, {"*": "admin"}, "acme"), HashEncoder()
    encoder.description = replace(encoder.description, payload_bytes=20_000)
    with running(tmp_path, encoder, keys=keys, cold_background=False, warm_up=False) as (anyone, _):
        client = with_key(anyone.channel, secret)
        client.ingest("kb", *(document(f"d{n}", f"Text {n}.") for n in range(9)))
        with changing(keys) as file:
            file.with_quota("acme", size_bytes=30_000).write(keys)
        assert cooled(client, 0.0) == (9, 9)
        assert written(client) == set()


def test_nothing_is_dropped_where_it_would_be_written_again_unasked(tmp_path: Path) -> None:
    with running(tmp_path, HashEncoder()) as (client, _):
        client.ingest("kb", document("d", "Text."))
        assert "cold_background=false" in refused(lambda: cooled(client, 0.5)).message
        assert refused(lambda: cooled(client, 1.5)).field == "keep_share"


def test_the_bounds_are_those_of_the_model_or_of_the_paper() -> None:
    import json

    def described(config: str) -> EncoderDescription:
        return EncoderDescription(HashEncoder().description.identity, 5, 128, 64, config, 1)

    first, last = bounds_of(described(json.dumps(MEMORY3_2B.to_dict())))
    assert (first, last) == pytest.approx(PAPER_BOUNDS, rel=0.01)
    assert bounds_of(described("{}")) == PAPER_BOUNDS
