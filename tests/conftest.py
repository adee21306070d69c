"""What the tests of several folders need: the real bundle, exported once while the model's files stay the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "memory_model" / "assets" / "smollm2-135m"


@pytest.fixture(scope="session")
def bundle() -> Path:
    """Folder of the real edge bundle, that of `make bundle` and `make demo`; exported when it is missing or old."""
    folder = ROOT / "build" / "bundle"
    manifest = folder / "manifest.json"
    newest = max(path.stat().st_mtime for path in ASSETS.rglob("*") if path.is_file())
    if not manifest.is_file() or manifest.stat().st_mtime < newest:
        program = Path(sys.executable).parent / "memory-model"
        done = subprocess.run([program, "export", "--out", folder], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder
