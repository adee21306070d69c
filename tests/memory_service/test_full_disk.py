"""A disk that is really full: every store says so by StoreFull, keeps what it acknowledged, and goes on later."""

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
from memory_service.stores.opening import open_store
from memory_service.stores.store import NewDocument
from tests.memory_service.stored import IDENTITY, document, require_whole

SIZE_MB = {"file": 12, "chdb": 40}


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
