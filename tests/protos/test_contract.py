"""A stale file of generated code is noticed; `make lint` compares the committed ones and lints the contract."""

from __future__ import annotations

import shutil
from pathlib import Path

from protos import generate


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
