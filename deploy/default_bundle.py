"""Whether a bundle of the default model is as new as what it is made from: for the demo and the tests."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "memory_model"
SOURCES = (
    PACKAGE / "assets",
    PACKAGE / "export",
    PACKAGE / "nn",
    PACKAGE / "bundle.py",
    PACKAGE / "cache_layout.py",
)


def is_current(bundle: Path) -> bool:
    """True if `bundle` has a manifest that is newer than the model's files and the code that exports them."""
    manifest = bundle / "manifest.json"
    files = (file for source in SOURCES for file in ([source] if source.is_file() else source.rglob("*")))
    newest = max(file.stat().st_mtime for file in files if file.is_file() and file.suffix != ".pyc")
    return manifest.is_file() and manifest.stat().st_mtime >= newest
