"""The contract: generated code is fresh, the lint is clean, and a stale file is noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from protos import generate

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_code_is_what_the_contract_says() -> None:
    assert generate.main(["--check"]) == 0, "run `make protos`"


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


def test_buf_lint_passes() -> None:
    buf = Path(sys.executable).parent / "buf"
    done = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
