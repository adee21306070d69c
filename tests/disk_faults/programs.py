"""`disk_faults.c`, built, and the programs of this folder with it preloaded."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("disk_faults.c")


def build(folder: Path) -> Path:
    """The library that is preloaded so that calls fail; skips where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = folder / "disk_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, SOURCE, "-ldl", "-lpthread"], check=True)
    return made


def require_nothing_breaks(program: str, situations: int, folder: Path, depth: int) -> None:
    """Runs `tests.disk_faults.{program}`: five errors at the first `depth` calls of five kinds, once and for good."""
    library = build(folder)
    scratch = folder / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", f"tests.disk_faults.{program}", str(scratch), str(depth)],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    *broken, summary = [line for line in done.stdout.splitlines() if re.match(r"BROKEN|\d+ cases", line)] or [""]
    assert (done.returncode, broken) == (0, []), done.stderr[-2000:]
    cases, failed, _ = map(int, re.findall(r"\d+", summary))
    assert cases == situations * 5 * 5 * 2 * depth
    assert failed >= cases // 2, "the faults were met"
