"""WordNet's glosses: what a word means, and who or what the thing with this name is.

A line of `data.noun` is one synset: offset, words, pointers to other synsets, and after `|` the gloss with
quoted examples. Synsets with the same hypernym stand together ("physicist": Ampère, Bohr, Einstein …), so
that a passage holds several facts of one kind.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memory_model.errors import CorruptFile
from memory_model.training.corpus.passages import Passage, join_lines, pack

_LONGEST = 900  # characters: some six synsets
_KINDS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}


@dataclass(frozen=True)
class Synset:
    """A set of synonyms: `words` first the most usual, `hypernym` the offset of what it is a kind or instance of."""

    offset: int
    kind: str
    words: tuple[str, ...]
    hypernym: int | None
    instance: bool
    gloss: str


def parse(line: str) -> Synset:
    """One line of a data file. Raises CorruptFile when the line is not of the format."""
    fields, bar, gloss = line.partition("|")
    try:
        columns = fields.split()
        offset, kind, count = int(columns[0]), columns[2], int(columns[3], 16)
        words = tuple(columns[4 + 2 * n].replace("_", " ") for n in range(count))
        at = 4 + 2 * count
        pointers = [columns[at + 1 + 4 * n : at + 5 + 4 * n] for n in range(int(columns[at]))]
        parents = [(symbol, int(target)) for symbol, target, _, _ in pointers if symbol in ("@", "@i")]
    except (IndexError, ValueError) as error:
        raise CorruptFile(f"no synset of WordNet: {line[:60]!r} ({error})") from error
    if not bar or not words:
        raise CorruptFile(f"no synset of WordNet: {line[:60]!r}")
    words = tuple(re.sub(r"\((?:a|p|ip)\)$", "", word) for word in words)
    parent = parents[0] if parents else None
    return Synset(
        offset, kind, words, parent and parent[1], bool(parent and parent[0] == "@i"), join_lines(gloss)
    )


def sentence(synset: Synset) -> str:
    """The synset as one line: `Albert Einstein, also Einstein: physicist born in Germany …`."""
    words = list(dict.fromkeys(synset.words))
    if synset.instance:  # the full name first
        words.sort(key=len, reverse=True)
    others = f", also {', '.join(words[1:4])}" if len(words) > 1 else ""
    line = f"{words[0]}{others}: {synset.gloss.rstrip(' ;')}"
    return line if line.endswith((".", "!", "?")) else f"{line}."


def passages(folder: Path) -> Iterator[Passage]:
    """The passages of WordNet's data files in `folder`, grouped by hypernym."""
    for name in _KINDS.values():
        synsets = [
            parse(line)
            for line in (folder / f"data.{name}").read_text(encoding="utf-8").splitlines()
            if not line.startswith("  ")  # the licence
        ]
        titles = {s.offset: s.words[0] for s in synsets}
        groups: dict[tuple[int, bool], list[Synset]] = defaultdict(list)
        for synset in synsets:
            parent = synset.hypernym if synset.hypernym in titles else None
            groups[parent if parent is not None else synset.offset, synset.instance].append(synset)
        for (parent, instance), group in sorted(groups.items()):
            key = f"{name}/{titles[parent]}/{parent}{'i' if instance else ''}"
            for number, text in enumerate(pack(map(sentence, group), _LONGEST)):
                yield Passage("wordnet", f"{key}#{number}", titles[parent], text)
