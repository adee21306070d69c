"""The default model's bundle: `python -m deploy.default_bundle FOLDER`, and before the demo and the tests."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "memory_model"
SOURCES = ("assets", "export", "nn", "bundle.py", "cache_layout.py", "embedder.py")


def ensure(bundle: Path) -> bool:
    """Export `bundle` unless it was made from the model's files and the exporter's code as they are now.

    True if it was exported. Of several processes one exports and the others wait. Raises CalledProcessError.
    """
    bundle.parent.mkdir(parents=True, exist_ok=True)
    note = bundle.with_name(f".{bundle.name}.made-from")
    with bundle.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = bundle / "manifest.json"
        if manifest.is_file() and note.is_file() and note.read_text() == _state(manifest):
            return False
        subprocess.run([Path(sys.executable).parent / "memory-model", "export", "--out", bundle], check=True)
        note.write_text(_state(manifest))
    return True


def _state(manifest: Path) -> str:
    """A digest of the manifest and of every file that a bundle is made from."""
    digest = hashlib.sha256(manifest.read_bytes())
    found = (f for name in SOURCES for f in [PACKAGE / name, *(PACKAGE / name).rglob("*")])
    for file in sorted(f for f in found if f.is_file() and f.suffix != ".pyc"):
        content = hashlib.sha256(file.read_bytes()).digest()
        digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + content)
    return digest.hexdigest()


if __name__ == "__main__":
    path = Path(sys.argv[1]).resolve()
    if not ensure(path):
        print(f"{path} is as new as the model's files, so it stays; delete it to export it again")
