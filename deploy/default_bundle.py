"""Whether a bundle of the default model is as new as what it is made from: for the demo and the tests.

`python -m deploy.default_bundle FOLDER` exports it there unless it is.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "memory_model"
SOURCES = (
    PACKAGE / "assets",
    PACKAGE / "export",
    PACKAGE / "nn",
    PACKAGE / "bundle.py",
    PACKAGE / "cache_layout.py",
    PACKAGE / "embedder.py",
)


def is_current(bundle: Path) -> bool:
    """True if `bundle` was made from the model's files and the exporter's code as they are now.

    By what `made` noted, because a checkout gives old files new times; else by the manifest's time.
    """
    manifest, note = bundle / "manifest.json", _note(bundle)
    if not manifest.is_file():
        return False
    if note.is_file() and note.read_text() == _state(manifest):
        return True
    return manifest.stat().st_mtime >= max(file.stat().st_mtime for file in _files())


def made(bundle: Path) -> None:
    """Note what `bundle`, just exported, was made from."""
    _note(bundle).write_text(_state(bundle / "manifest.json"))


def _note(bundle: Path) -> Path:
    return bundle.with_name(f".{bundle.name}.made-from")


def _state(manifest: Path) -> str:
    digest = hashlib.sha256(manifest.read_bytes())
    for file in _files():
        digest.update(
            str(file.relative_to(PACKAGE)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest()
        )
    return digest.hexdigest()


def _files() -> list[Path]:
    """Every file that a bundle is made from, sorted."""
    found = (file for source in SOURCES for file in ([source] if source.is_file() else source.rglob("*")))
    return sorted(file for file in found if file.is_file() and file.suffix != ".pyc")


def main(bundle: Path) -> int:
    """Export unless there is a bundle that is current; the exporter's exit code."""
    if is_current(bundle):
        print(f"{bundle} is as new as the model's files, so it stays; delete it to export it again")
        return 0
    code = subprocess.call([Path(sys.executable).parent / "memory-model", "export", "--out", bundle])
    if code == 0:
        made(bundle)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
