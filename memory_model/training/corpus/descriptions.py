"""The descriptions of Debian's packages: what each program is and does.

apt keeps them as paragraphs of `Package`, `Description-en: summary` and lines that begin with a space;
a line ` .` parts paragraphs, and lines with two spaces are lists or listings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from memory_model.training.corpus.passages import Passage, document_passages, is_prose, join_lines


def passages(translations: Iterable[Path]) -> Iterator[Passage]:
    """One document for each package; a package whose text stands under another name already is left out."""
    seen: set[str] = set()
    for path in translations:
        for record in path.read_text(encoding="utf-8").split("\n\n"):
            name, paragraphs = prose(record)
            known = paragraphs[-1] if paragraphs else ""
            if paragraphs and known not in seen:
                seen.add(known)
                yield from document_passages("packages", name, name, paragraphs)


def prose(record: str) -> tuple[str, list[str]]:
    """The package's name and the paragraphs of its description, the first opened by name and summary."""
    name = re.search(r"^Package: (\S+)", record, re.M)
    described = re.search(r"^Description-en: (.*)\n((?: .*(?:\n|$))*)", record, re.M)
    if not name or not described:
        return "", []
    paragraphs: list[str] = []
    for block in re.split(r"^ \.\s*$", described.group(2), flags=re.M):
        lines = [line for line in block.splitlines() if line.strip()]
        text = join_lines(" ".join(lines))
        listed = any(line.startswith("  ") or line.lstrip().startswith(("*", "-")) for line in lines)
        if not listed and is_prose(text):
            paragraphs.append(text)
    if paragraphs:
        paragraphs[0] = f"{name.group(1)} ({described.group(1).strip()}): {paragraphs[0]}"
    return name.group(1), paragraphs
