"""What the tests of several folders need: the real bundle, exported once while the model's files stay the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from deploy.default_bundle import is_current, made

ROOT = Path(__file__).resolve().parents[1]

# A busy machine is no failure: no test of ours is about time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def bundle() -> Path:
    """Folder of the real edge bundle, that of `make bundle` and `make demo`; exported when it is missing or old."""
    folder = ROOT / "build" / "bundle"
    if not is_current(folder):
        program = Path(sys.executable).parent / "memory-model"
        done = subprocess.run([program, "export", "--out", folder], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        made(folder)
    return folder
