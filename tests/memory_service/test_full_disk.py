"""A disk that is really full: every store says so by StoreFull, keeps what it acknowledged, and goes on later."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from memory_service.errors import StoreFull
from memory_service.stores import NewDocument, open_store
from protos.memory.v1 import ingestion_pb2 as pb
from tests.memory_service import running as api
from tests.memory_service.encoders import HashEncoder
from tests.memory_service.stored import IDENTITY, document, require_whole

SIZE_MB = {"file": 12, "chdb": 40}
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


def large(number: int) -> NewDocument:
    """A document of eight references with payloads of the paper's size."""
    small = document(f"d{number}", *[f"document {number} chunk {chunk}" for chunk in range(8)])
    payload = np.random.default_rng(number).bytes(39_424)
    crc = google_crc32c.value(payload)
    return replace(small, references=[replace(r, payload=payload, crc32c=crc) for r in small.references])


@pytest.mark.parametrize("kind", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
def test_a_full_disk_loses_nothing_and_what_is_freed_is_used(disk: Path, kind: str) -> None:
    ballast, written = disk / "ballast", list[str]()
    ballast.write_bytes(b"\1" * (2 << 20))
    with closing(open_store(f"{kind}://{disk}/store")) as store:
        base = store.create("kb", "", IDENTITY)

        def fill() -> None:
            for number in range(1000):
                store.write(base, [large(number)])
                written.append(f"d{number}")

        with pytest.raises(StoreFull, match="disk is full"):
            fill()
        assert written
        require_whole(store, base)
    with closing(open_store(f"{kind}://{disk}/store")) as store:
        ballast.unlink()
        store.write(base, [large(999)])
        require_whole(store, base)
        assert set(store.keys(base, "", after_key=None, count=1000)) == {*written, "d999"}


@pytest.mark.parametrize("kind", ["file"])
def test_each_document_that_found_no_room_is_told_so_and_may_come_again(disk: Path, kind: str) -> None:
    settings = {"store": f"{kind}://{disk}/store", "warm_up": False}
    ballast = disk / "ballast"
    documents = [api.document(f"d{n}", f"Text {n}. " * 600) for n in range(60)]
    with api.running(disk, HashEncoder(), **settings) as (client, _):
        client.ingest("kb", api.document("first", "First."))
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        ballast.write_bytes(bytes(free - ROOM_BYTES))
        answers = client.ingest("kb", *documents)[1:]
        reasons = {api.reason_of(one.failed) for one in answers if one.HasField("failed")}
        stored = {one.acknowledged.document_key for one in answers if one.HasField("acknowledged")}
        assert reasons == {"STORE_FULL"}
        assert stored
        ballast.unlink()
        again = [one.acknowledged for one in client.ingest("kb", *documents)[1:]]
        assert len(again) == len(documents)
        unchanged = {one.document_key for one in again if one.outcome == pb.INGEST_OUTCOME_UNCHANGED}
        assert stored <= unchanged
