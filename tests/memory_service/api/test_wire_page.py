"""The example of docs/wire.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.memory_service.encoders import HashEncoder
from tests.memory_service.running import running

PAGE = Path(__file__).resolve().parents[3] / "docs" / "wire.md"


def test_the_example_writes_and_finds_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}") as (_, server):
        exec(example.replace("127.0.0.1:50051", f"127.0.0.1:{server.port}"), {})
    assert "benin: Benin\nBenin has 13 million people.\n" in capsys.readouterr().out
