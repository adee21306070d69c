"""The SDK's reference is made from its docstrings, and every public name is in it."""

from __future__ import annotations

from pathlib import Path

import edge_client
from docs.reference import write_reference


def test_every_public_name_is_in_the_reference(tmp_path: Path) -> None:
    page = write_reference(tmp_path).read_text(encoding="utf-8")
    assert [name for name in edge_client.__all__ if f'id="{name}"' not in page] == []
