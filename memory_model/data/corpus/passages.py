"""A passage of prose to train on: one line of a corpus' `<source>.jsonl`.

Any folder of such files is a corpus; docs/data.md says what the fields mean and how the shipped model's is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from memory_model.errors import CorruptFile, MissingFile

HELD_OUT = 0.03  # share of the documents that no training sees

Row = TypeVar("Row")


@dataclass(frozen=True)
class Passage:
    """One passage. `key` is `document` or `document#n`; all passages of a document fall on one side of the split."""

    source: str
    key: str
    title: str
    text: str


def held_out(source: str, key: str) -> bool:
    """Whether a passage is kept out of all training: about 3 % of the documents, fixed by source and key.

    Passages of one document fall together, and so do the same article's in `wikipedia` and `wikipedia-articles`.
    """
    family, document = source.partition("-")[0], key.partition("#")[0]
    digest = hashlib.sha256(f"corpus {family} {document}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32


def read_passages(path: str | Path) -> Iterator[Passage]:
    """The passages of a JSONL file. Raises MissingFile, or CorruptFile with the line's number."""
    return read_rows(Path(path), Passage, "passage", "prepare-data")


def write_rows(path: Path, rows: Iterable[Any]) -> int:
    """Write dataclasses of strings as a JSONL file, replaced as a whole, and return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
            count += 1
    partial.replace(path)
    return count


def read_rows(path: Path, kind: type[Row], what: str, made_by: str) -> Iterator[Row]:
    """What `write_rows` wrote. Raises MissingFile, or CorruptFile with the line's number."""
    if not path.is_file():
        raise MissingFile(f"no {what}s at {path}: make them with `python -m experiments {made_by}`")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield kind(**json.loads(line))
            except (json.JSONDecodeError, TypeError) as error:
                raise CorruptFile(f"{path}, line {number} is no {what}: {error}") from error
