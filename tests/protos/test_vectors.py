"""The vectors are what the production code makes, a reader in another language agrees, stale code is noticed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from protos import generate
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


def test_a_changed_contract_and_a_leftover_are_stale_until_the_code_is_written(tmp_path: Path) -> None:
    for folder in ("memory", "google"):
        shutil.copytree(generate.PROTO_ROOT / folder, tmp_path / folder)
    proto = tmp_path / "memory" / "v1" / "models.proto"
    proto.write_text(proto.read_text().replace("string service_version = 10;", "string version = 10;"))
    (tmp_path / "memory" / "v1" / "gone_pb2.py").write_text("")
    names = {path.name for path in generate.update(tmp_path, check=True)}
    assert names == {"models_pb2.py", "models_pb2.pyi", "gone_pb2.py"}
    generate.update(tmp_path)
    assert generate.update(tmp_path, check=True) == []
