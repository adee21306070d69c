"""What may be wrong with a folder that others made: a file is missing, cut short, or says something else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return change


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**data, **changes}))

    return change
