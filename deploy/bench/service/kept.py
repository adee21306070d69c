"""Parts of a long measurement as files: what was interrupted goes on where it was, if it is told to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from deploy.bench import result_files
from deploy.bench.scenario import Keys


class Kept:
    """A folder of parts by name. With `resume` those that are there are taken, otherwise it is emptied first."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self._folder = folder
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)

    def part(self, name: str, measure: Callable[[], Keys]) -> Keys:
        """The part of this name, measured unless it is there."""
        path = self._folder / f"{name}.json"
        if path.is_file():
            found: Keys = json.loads(path.read_text(encoding="utf-8"))
            return found
        keys = measure()
        result_files.write(keys, path)
        return keys
