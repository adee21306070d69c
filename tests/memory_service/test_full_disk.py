"""A disk that is really full: every store says so by StoreFull, keeps what it acknowledged, and goes on later."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from memory_service.errors import StoreFull
from memory_service.stores import KnowledgeBase, NewDocument, NewReference, Store, open_store
from protos.memory.v1 import ingestion_pb2 as pb
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.running import document, reason_of, running
from tests.memory_service.stored import IDENTITY, keys_near, require_whole

SIZE_MB = {"file": 12, "chdb": 40}
PAYLOAD_BYTES = 39_424
ROOM_BYTES = 400_000


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, which only root can make."""
    size = SIZE_MB[request.getfixturevalue("kind")]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def large(number: int, count: int) -> NewDocument:
    """A document of `count` references with payloads of the paper's size."""
    references = []
    for chunk in range(count):
        payload = np.random.default_rng(number * 1000 + chunk).bytes(PAYLOAD_BYTES)
        text = f"document {number} chunk {chunk}"
        references.append(
            NewReference(
                number * 1000 + chunk + 1, text, vector_of(text), payload, google_crc32c.value(payload)
            )
        )
    return NewDocument(f"d{number}", "", {}, number.to_bytes(32, "big"), references)


def check(store: Store, base: KnowledgeBase, keys: set[str]) -> None:
    require_whole(store, base)
    assert set(keys_near(store, base, "document", k=1000)) == keys


@pytest.mark.parametrize("kind", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
def test_a_full_disk_loses_nothing_and_what_is_freed_is_used(disk: Path, kind: str) -> None:
    url = f"{kind}://{disk}/store"
    store = open_store(url)
    base = store.create("kb", "", IDENTITY)
    written: set[str] = set()
    ballast = disk / "ballast"
    ballast.write_bytes(b"\1" * (2 << 20))

    def fill() -> None:
        for number in range(1000):
            store.write(base, [large(number, 8)])
            written.add(f"d{number}")

    with pytest.raises(StoreFull, match="disk is full"):
        fill()
    assert written
    check(store, base, written)
    store.close()
    store = open_store(url)
    base = store.knowledge_base("kb")
    assert base.problem == ""
    check(store, base, written)
    ballast.unlink()
    store.write(base, [large(999, 2)])
    check(store, base, written | {"d999"})
    store.close()


@pytest.mark.parametrize("kind", ["file"])
def test_each_document_that_found_no_room_is_told_so_and_may_come_again(disk: Path, kind: str) -> None:
    settings = {
        "store": f"{kind}://{disk}/store",
        "warm_up": False,
    }
    ballast, documents = disk / "ballast", [document(f"d{n}", f"Text {n}. " * 600) for n in range(60)]
    with running(disk, HashEncoder(), **settings) as (client, _):
        client.ingest("kb", document("first", "First."))
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        ballast.write_bytes(bytes(free - ROOM_BYTES))
        said = {
            one.failed.document_key or one.acknowledged.document_key: one
            for one in client.ingest("kb", *documents)[1:]
        }
        refused = {key for key, one in said.items() if one.HasField("failed")}
        assert {reason_of(said[key].failed) for key in refused} == {"STORE_FULL"}
        stored = said.keys() - refused
        assert stored
        ballast.unlink()
        again = client.ingest("kb", *documents)[1:]
        outcomes = {one.acknowledged.document_key: one.acknowledged.outcome for one in again}
        assert len(outcomes) == len(documents)
        unchanged = {key for key, outcome in outcomes.items() if outcome == pb.INGEST_OUTCOME_UNCHANGED}
        assert stored <= unchanged
