"""The vectors are what the production code makes, and a reader in another language agrees with them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.protos.make_vectors import FOLDER, contents

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="the reader is JavaScript, and there is no node")


def read(folder: Path) -> subprocess.CompletedProcess[str]:
    assert NODE is not None
    return subprocess.run([NODE, folder / "reader.mjs"], capture_output=True, text=True, timeout=60)


def test_the_vectors_are_those_of_the_production_code() -> None:
    for name, text in contents().items():
        assert (FOLDER / name).read_text() == text, "run `python -m tests.protos.make_vectors`"


@needs_node
def test_a_reader_in_another_language_agrees() -> None:
    done = read(FOLDER)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all vectors agree\n"


@needs_node
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("words.json", "1803170748", "1803170749"),
        ("content_hashes.json", '"title": "Benin"', '"title": "benin"'),
        ("payloads.json", '"crc32c": ', '"crc32c": 1'),
        ("payloads.json", '"tokens": 5', '"tokens": 6'),
    ],
)
def test_the_reader_notices_another_vector(tmp_path: Path, name: str, old: str, new: str) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    file = tmp_path / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    assert read(tmp_path).returncode == 1
