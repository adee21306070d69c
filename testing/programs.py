"""Running programs, and Python environments to run them in."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def ran(*command: object, **options: Any) -> str:
    """Run a program, which must exit with 0, and return its standard output; options are subprocess.run's."""
    given: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 600, **options}
    done = subprocess.run([str(word) for word in command], check=False, **given)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return str(done.stdout)


def python_with(folder: Path, *packages: object) -> Path:
    """Create an environment with these packages on top of those installed here; takes pip's options too."""
    ran(sys.executable, "-m", "venv", folder)
    inner = next((folder / "lib").glob("python*")) / "site-packages"
    (inner / "beneath.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{ROOT}\n")
    python = folder / "bin" / "python"
    ran(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python
