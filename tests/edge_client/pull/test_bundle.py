"""Pulling against the service as a real process, through a proxy that breaks connections where a test says."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge_client.errors import RetrievalError, StorageError
from edge_client.pull import transfer
from edge_client.pull.bundle import checked_manifest, pull_bundle
from memory3.channel import ChannelSettings
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput
from memory3.files.bundle import MANIFEST, Bundle
from protos.memory.v1 import models_pb2, models_pb2_grpc
from testing.programs import ran
from testing.tcp_proxy import TcpProxy
from tests.edge_client.cli.conftest import PROGRAM
from tests.memory_service.processes import service as service_process

EXTRA = "notes.bin"
EXTRA_BYTES = 9 << 20


@pytest.fixture(scope="module")
def offered(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle and one large file more."""
    folder = Path(shutil.copytree(tiny.folder, tmp_path_factory.mktemp("offered") / "bundle"))
    (folder / EXTRA).write_bytes(np.random.default_rng(0).bytes(EXTRA_BYTES))
    listed(folder, EXTRA)
    return folder


def listed(folder: Path, name: str, **changed: Any) -> None:
    """Write a file's entry into the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text())
    path = folder / name
    entry = {"sha256": file_sha256(path), "bytes": path.stat().st_size} if path.is_file() else {}
    manifest["files"][name] = {**entry, **changed}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def address(offered: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with service_process(tmp_path_factory.mktemp("service"), bundle=offered) as running:
        yield running.address


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FIRST_PAUSE_S", 0.01)


def part(place: Path) -> Path:
    return next(place.parent.glob(f".{place.name}.pull/{EXTRA}.*"), place / "none")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def same(place: Path, offered: Path) -> bool:
    return files_of(place) == files_of(offered)


def test_a_broken_connection_goes_on_where_it_stopped(address: str, offered: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    with TcpProxy(address, 2_000_000, 3_000_000, 100) as proxy:
        pull_bundle(ChannelSettings(proxy.address, attempts=1), place)
    assert proxy.connections >= 4
    assert same(place, offered)


@pytest.mark.parametrize("corrupted", [False, True])
def test_a_service_that_stays_away_is_named_and_what_came_is_kept_unless_it_is_wrong(
    address: str, offered: Path, tmp_path: Path, corrupted: bool
) -> None:
    place = tmp_path / "bundle"
    with TcpProxy(address, 5_000_000, *[100] * 50) as proxy, pytest.raises(RetrievalError, match="service at"):
        pull_bundle(ChannelSettings(proxy.address, attempts=1), place)
    assert not place.exists()
    data = bytearray(part(place).read_bytes())
    assert len(data) > 1_000_000
    data[1000] ^= corrupted
    part(place).write_bytes(data)
    told: list[tuple[int, int, str]] = []
    pull_bundle(ChannelSettings(address), place, progress=lambda *step: told.append(step))
    assert same(place, offered)
    assert len(data) in {done for done, _, what in told if what == EXTRA} or told[0][0] > 0


def test_an_older_bundle_is_replaced_and_its_equal_files_do_not_come_again(offered: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(offered, tmp_path / "bundle"))
    (place / "codec.npz").write_bytes(b"older")
    listed(place, "codec.npz")
    with misbehaving(offered, nothing) as address:  # does not send EXTRA at all
        pull_bundle(ChannelSettings(address), place)
    assert same(place, offered)


def test_ctrl_c_leaves_what_the_next_run_goes_on_with(address: str, offered: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    command = [PROGRAM, "pull", "--bundle", place, "--service"]
    with TcpProxy(address, 5_000_000, hold=True) as proxy:
        process = subprocess.Popen([*command, proxy.address], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while process.poll() is None and not part(place).is_file():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again to resume" in said
    assert "Traceback" not in said
    assert "checksums right" in ran(*command, address)
    assert same(place, offered)


def test_a_full_disk_is_named_and_what_came_is_kept(address: str, offered: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    limit = 4 << 20

    limited = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    then = "os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", f"{limited}; {then}", PROGRAM, "pull", "--service", address, "--bundle", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ("no room for" in done.stderr, "Traceback" in done.stderr) == (True, False), done.stderr
    assert done.returncode == 1
    assert not place.exists()
    assert part(place).stat().st_size == limit
    pull_bundle(ChannelSettings(address), place)
    assert same(place, offered)


def test_two_pulls_to_one_place_do_not_mix(address: str, tmp_path: Path) -> None:
    with transfer.staged(tmp_path / "bundle"), pytest.raises(StorageError, match="another process"):
        pull_bundle(ChannelSettings(address), tmp_path / "bundle")


def test_a_folder_of_something_else_is_left_alone(address: str, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="is not a bundle"):
        pull_bundle(ChannelSettings(address), tmp_path / "letters")
    assert [p.name for p in (tmp_path / "letters").iterdir()] == ["dear.txt"]


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/b", "..", ".hidden", "a\\b", "", "con\0", MANIFEST, "a" * 200]
)
def test_a_manifest_whose_names_leave_the_folder_is_refused(offered: Path, name: str) -> None:
    manifest = json.loads((offered / MANIFEST).read_text())
    manifest["files"][name] = {"sha256": "0" * 64, "bytes": 3}
    with pytest.raises(CorruptFile, match="no plain file name"):
        checked_manifest(json.dumps(manifest).encode())


Piece = models_pb2.FetchBundleResponse


def nothing(m: Piece) -> None:
    return None


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda m: Piece(data=bytes(len(m.data)), offset=m.offset, file_bytes=m.file_bytes), CorruptFile),
        (lambda m: Piece(data=m.data, offset=m.offset + 1, file_bytes=m.file_bytes), CorruptFile),
        (lambda m: Piece(data=m.data, offset=m.offset, file_bytes=m.file_bytes + 1), CorruptFile),
        (nothing, RetrievalError),
    ],
    ids=["other bytes", "a gap", "another size", "nothing"],
)
def test_a_service_that_sends_something_else_is_named_and_nothing_appears(
    offered: Path, tmp_path: Path, spoil: Callable[[Any], Any], error: type[Exception]
) -> None:
    place = tmp_path / "bundle"
    with misbehaving(offered, spoil) as address, pytest.raises(error):
        pull_bundle(ChannelSettings(address), place)
    assert not place.exists()


@contextmanager
def misbehaving(folder: Path, spoil: Callable[[Any], Any] = lambda m: m) -> Iterator[str]:
    """A service that offers whatever lies in a folder; `spoil` changes the pieces of EXTRA, or leaves them out."""

    class Models(models_pb2_grpc.ModelsServicer):
        def FetchBundle(self, request: Any, context: Any) -> Iterator[Piece]:
            data = (folder / (request.file or MANIFEST)).read_bytes()
            for offset in range(request.offset, len(data), 1 << 20):
                piece = Piece(data=data[offset : offset + (1 << 20)], offset=offset, file_bytes=len(data))
                sent = spoil(piece) if request.file == EXTRA else piece
                if sent is not None:
                    yield sent

    server = grpc.server(ThreadPoolExecutor(2))
    models_pb2_grpc.add_ModelsServicer_to_server(Models(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
