"""`LocalStore`: where the files of knowledge bases lie, those of each model apart in the user's own store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from edge_client.local.database import disk_errors
from edge_client.local.knowledge_base import read_head
from memory3.errors import InvalidInput, MissingFile
from memory3.files.bundle import Manifest
from memory3.files.knowledge_file import Head

SUFFIX = ".memories"
JOURNALS = ("-wal", "-shm")
"""What SQLite appends to a file's name for its write-ahead log and that one's index."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_MODEL_FOLDER = re.compile(r"(.*)-([0-9a-f]{12})")


@dataclass(frozen=True)
class LocalStore:
    """A folder of knowledge bases, each a file `NAME.memories`.

    by_model: every model has a folder of its own in it, such as `smollm2-135m-0123456789ab`, made with its first
    knowledge base; files of the folder itself, which earlier releases wrote, stay their model's. Otherwise all files
    are to be of one model. The user's own store is by model, a folder that was named is not.
    """

    folder: Path
    by_model: bool = False

    def files(self) -> list[Path]:
        """Of all models, those of the folder itself first; raises StorageError."""
        names = _names(self.folder) if self.by_model else []
        models = [self.folder / name for name in names if _MODEL_FOLDER.fullmatch(name)]
        return [path for folder in (self.folder, *models) for path in files_of(folder)]

    def named(self, name: str) -> list[Path]:
        """Of all models, those that are called so; raises InvalidInput for a name that no file can have."""
        check_name(name)
        return [path for path in self.files() if path.stem == name]

    def missing(self, name: str) -> MissingFile:
        """The error for a name that no knowledge base has, with those that there are, of all models."""
        there = ", ".join(dict.fromkeys(path.stem for path in self.files()))
        advice = f"; there are: {there}" if there else ": make one with `edge-client remember`"
        return MissingFile(f"no local knowledge base is called {name!r} in {self.folder}{advice}")

    def folder_of(self, manifest: Manifest) -> Path:
        """Where the knowledge bases of a bundle are made."""
        if not self.by_model:
            return self.folder
        ids = (manifest.model_id, manifest.codec_id, manifest.memory_format_id, manifest.embedder_id)
        digest = hashlib.sha256(" ".join(ids).encode()).hexdigest()[:12]
        known = [name for name in _names(self.folder) if name.endswith(f"-{digest}")]  # perhaps by another name
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", manifest.name)[:64] or "model"
        return self.folder / (known[0] if known else f"{name}-{digest}")

    def make(self) -> None:
        """Make the folder, for its owner alone, where it is missing; raises StorageError."""
        with disk_errors(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, name: str, manifest: Manifest | None) -> Path:
        """Where a knowledge base of a bundle lies, or is to be made; None: no bundle is known."""
        check_name(name)
        here = self.folder / f"{name}{SUFFIX}"
        if manifest is None or not self.by_model or (here.is_file() and reads(manifest, read_head(here))):
            return here
        return self.folder_of(manifest) / here.name

    def model_of(self, path: Path, head: Head) -> str:
        """The model of a knowledge base for people: its folder, else the beginning of its id, as `doctor` shows it."""
        own_folder = self.by_model and path.parent != self.folder
        return path.parent.name if own_folder else f"id {head.model_id[:12]}"


def size_of(path: Path) -> int:
    """Bytes of a knowledge base, with what SQLite keeps next to its file while programs have it open."""
    parts = (path, *(path.with_name(f"{path.name}{suffix}") for suffix in JOURNALS))
    with disk_errors(path):
        return sum(part.stat().st_size for part in parts if part.exists())


def files_of(folder: Path) -> list[Path]:
    """The files of a folder's knowledge bases, by name; raises StorageError where the folder cannot be read."""
    paths = [folder / name for name in _names(folder) if name.endswith(SUFFIX)]
    return [path for path in paths if _NAME.fullmatch(path.stem)]


def _names(folder: Path) -> list[str]:
    """What is in a folder, nothing where there is none."""
    with disk_errors(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))
    return []


def check_name(name: str) -> None:
    """Raise InvalidInput for a name that no file can have."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"a local knowledge base cannot be called {name!r}: use letters, digits, '.', '_' and '-', 64 at most"
        )


def reads(manifest: Manifest, head: Head) -> bool:
    """Whether a bundle reads what a file's writer wrote."""
    names = ("model_id", "codec_id", "memory_format_id", "embedder_id")
    return all(getattr(manifest, name) == getattr(head, name) for name in names)
