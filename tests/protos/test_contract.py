"""The contract: generated code is fresh, the lint is clean, and a stale file is noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from protos import generate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for folder in ("memory", "google"):
        shutil.copytree(generate.PROTO_ROOT / folder, tmp_path / folder)
    return tmp_path


def test_the_generated_code_is_what_the_contract_says() -> None:
    assert generate.stale() == [], "run `make protos`"


def test_every_proto_file_has_its_code() -> None:
    for proto in generate.proto_files():
        for suffix in generate.GENERATED_SUFFIXES:
            assert (generate.PROTO_ROOT / proto.with_name(proto.stem + suffix)).is_file()


def test_a_changed_contract_and_a_leftover_are_stale(copied: Path) -> None:
    assert generate.stale(copied) == []
    proto = copied / "memory" / "v1" / "models.proto"
    proto.write_text(proto.read_text().replace("string service_version = 10;", "string version = 10;"))
    (copied / "memory" / "v1" / "gone_pb2.py").write_text("")
    names = {path.name for path in generate.stale(copied)}
    assert names == {"models_pb2.py", "models_pb2.pyi", "gone_pb2.py"}
    generate.write(copied)
    assert generate.stale(copied) == []


def test_the_check_fails_a_stale_tree(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "stale", lambda root=copied: [Path("memory/v1/models_pb2.py")])
    assert generate.main(["--check"]) == 1


def test_a_broken_contract_is_an_error(copied: Path) -> None:
    (copied / "memory" / "v1" / "models.proto").write_text("syntax = 'proto3'; nonsense")
    with pytest.raises(generate.GenerationFailed):
        generate.generate(copied)


def test_buf_lint_passes() -> None:
    buf = Path(sys.executable).parent / "buf"
    done = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
