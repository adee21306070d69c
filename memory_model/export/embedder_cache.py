"""Embedders exported once and kept under build/, for commands that search a knowledge base."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from memory3.runtime.embedder import CONFIG, Embedder
from memory_model.defaults import MINILM
from memory_model.export.embedder import export_embedder

FOLDER = Path("build/embedder")


def open_embedder(folder: Path | None, name: str = MINILM, *, threads: int = 1) -> Embedder:
    """The exported embedder in `folder`; None: that of `name` (`minilm` or a folder), exported at first use."""
    if folder is None:
        source = Path(name).resolve()
        folder = FOLDER if name == MINILM else FOLDER.with_name(f"embedder-{source.name}-{crc32(bytes(source)):08x}")
        if not (folder / CONFIG).is_file():
            export_embedder(name, folder)
    return Embedder(folder, threads=threads)
