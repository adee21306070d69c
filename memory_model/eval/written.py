"""Memories that earlier evaluations wrote, on disk: as they were written, before any codec."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import torch

from memory3.codec.codec import ExactCodec
from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.errors import Memory3Error
from memory3.home import users_folder
from memory_model.models.load import LoadedModel

LARGEST = 4 << 30
"""Bytes that all of them may take; the ones that were read longest ago are removed."""
_SUM = 4
"""Bytes of a file's checksum, in front."""


class WrittenMemories:
    """Files by the SHA-256 of model, memory format, precision and reference text. Processes may share them."""

    def __init__(self, loaded: LoadedModel, folder: Path | None = None) -> None:
        self.folder = folder or users_folder("cache", "memory3") / "memories"
        self._format = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
        device = loaded.model.embed_tokens.weight.device.type
        self._identity = f"{loaded.model_id} {loaded.config.memory_format_id} {device}"

    def of(
        self, texts: Sequence[str], write: Callable[[Sequence[str]], list[ExplicitMemory]], precision: torch.dtype
    ) -> list[ExplicitMemory]:
        """The memories of reference texts; those that are not there yet are written, and kept."""
        paths = [self._path(text, precision) for text in texts]
        found = {text: memory for text, path in zip(texts, paths, strict=True) if (memory := self._read(path))}
        todo = [text for text in texts if text not in found]
        written = dict(zip(todo, write(todo) if todo else [], strict=True))
        payloads = self._format.encode(list(written.values())) if todo else []
        for text, payload in zip(todo, payloads, strict=True):
            self._keep(self._path(text, precision), payload)
        if todo:
            self._prune()
        return [found.get(text) or written[text] for text in texts]

    def _path(self, text: str, precision: torch.dtype) -> Path:
        name = hashlib.sha256(f"{self._identity} {precision}\n{text}".encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.memory"

    def _read(self, path: Path) -> ExplicitMemory | None:
        """A memory; None where it is not there or damaged, which its checksum shows."""
        try:
            content = path.read_bytes()
            if content[:_SUM] != _sum(content[_SUM:]):
                return None
            (memory,) = self._format.decode([content[_SUM:]])
            os.utime(path)
        except (OSError, Memory3Error):
            return None
        return memory

    def _keep(self, path: Path, payload: bytes) -> None:
        """Write a file; a full or read-only disk is no error, it only saves no time."""
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(_sum(payload) + payload)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)

    def _prune(self) -> None:
        """Remove the files that were read longest ago until all fit LARGEST."""
        files = []
        for path in self.folder.glob("*/*.memory"):
            try:
                files.append((path.stat().st_mtime, path.stat().st_size, path))
            except OSError:  # another process removed it
                continue
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= LARGEST:
                return
            path.unlink(missing_ok=True)
            total -= size


def _sum(payload: bytes) -> bytes:
    return crc32(payload).to_bytes(_SUM, "little")
