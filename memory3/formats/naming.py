"""Which document a file is: its absolute path, or a name given in its place; and which ones are gone.

Paths are those of files as they are typed, with the symbolic links of their folders resolved, so that `rent.md`,
`../notes/rent.md` and the absolute path are one document, and two files of the same name are two.
"""

from __future__ import annotations

import glob
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path, PurePath
from typing import NamedTuple

from memory3.errors import InvalidInput, shortened
from memory3.formats.document import FileDocument
from memory3.formats.report import NOT_OPENED, Report

_PART = re.compile(r"#(page|row|mail)=(\d+)\Z")
"""What follows a file's key in those of its pages, rows and mails; `#page=` as in RFC 8118."""
_SUFFIX = re.compile(r".\.[A-Za-z]\w{0,8}\Z")
"""How a key ends that is a file's name and no number, date or word."""
FILE = "source_file"
"""Metadata of a document that is a record of a file: the key of the file."""
MOST_NAMED = 10
"""Documents that an error lists."""


def absolute(path: Path) -> Path:
    """The path in the file system; of a symbolic link, where the link is."""
    path = path.expanduser()
    return path.resolve() if path.is_dir() or path.name == ".." else path.parent.resolve() / path.name


@dataclass(frozen=True)
class Naming:
    """Keys of the files that `find_sources` found in `paths`.

    name: replaces the one path, which is a file or a folder. Raises InvalidInput for another.
    """

    paths: tuple[Path, ...]
    name: str = ""

    def __post_init__(self) -> None:
        """Check the name."""
        if self.name and (len(self.paths) != 1 or not (self.paths[0].is_file() or self.paths[0].is_dir())):
            raise InvalidInput("a name is for one file or one folder: give that alone")

    def key(self, source: Path) -> str:
        """The document that the file is."""
        path = absolute(source)
        if not self.name:
            return str(path)
        root = absolute(self.paths[0])
        return self.name if path == root else f"{self.name}/{path.relative_to(root).as_posix()}"

    def gone(self, stored: Mapping[str, str], there: Collection[str], report: Report) -> list[str]:
        """Stored documents, {key: key of its file}, whose files the folders and patterns no longer hold.

        there: keys of the files that the paths hold. report: of the search for them; what a folder holds that could not
        be opened is not known to be gone.
        """
        closed = tuple(f"{self.key(Path(one.name))}/" for one in report.skipped if one.reason == NOT_OPENED)

        def is_gone(file: str) -> bool:
            if file in there or file.startswith(closed):
                return False
            if any(file.startswith(f"{folder}/") for folder in self.folders):
                return True
            return any(file.startswith(f"{root}/") for root in self._roots) and not Path(file).exists()

        return [key for key, file in stored.items() if is_gone(file)]

    @property
    def folders(self) -> list[str]:
        """Keys of the folders: what is below them is theirs."""
        return [self.name or str(absolute(path)) for path in self.paths if path.is_dir()]

    @property
    def _roots(self) -> list[str]:
        """Folders below which the patterns look."""
        found = []
        for path in self.paths:
            if glob.has_magic(str(path)) and not path.exists():
                plain = path
                while glob.has_magic(str(plain)):
                    plain = plain.parent
                found.append(str(absolute(plain)))
        return found


class FilesRead:
    """The files that were read, each with the keys of its documents: a page or row that is no longer one of them goes.

    A file counts once all of its documents could be read; otherwise nobody knows what is missing.
    """

    def __init__(self) -> None:
        self._whole: dict[str, bool] = {}
        self._keys: set[str] = set()

    def add(self, source: str, key: str, *, readable: bool) -> None:
        """A document of the file with the key `source`."""
        self._keys.add(key)
        self._whole[source] = self._whole.get(source, True) and readable

    @property
    def whole(self) -> list[str]:
        """Keys of the files of which all documents could be read."""
        return [file for file, whole in self._whole.items() if whole]

    def left_over(self, stored: Mapping[str, str]) -> list[str]:
        """Stored documents, {key: key of its file}, that their files held when they were longer or had other pages."""
        return [key for key, file in stored.items() if self._whole.get(file) and key not in self._keys]


def file_of(key: str, metadata: Mapping[str, str]) -> str:
    """The key of the file that a stored document is from."""
    return metadata.get(FILE) or _PART.sub("", key)


def natural(key: str) -> str:
    """What keys are sorted by, so that page 2 comes before page 10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), key)


def page_of(key: str) -> int | None:
    """The page of a PDF that a document is, from 1; None for any other document."""
    found = _PART.search(key)
    return int(found[2]) if found and found[1] == "page" else None


def source_of(key: str, title: str = "", file: str = "") -> str:
    """A document for people: "manual.pdf, page 12" for a page, otherwise its title, or its key without one.

    A title that is not the name of the document's file is followed by that: "Wheel truing (prices.csv)". file: the key
    of the file, where the document's own key does not tell it.
    """
    path = file or _PART.sub("", key)
    name = path.replace(chr(92), "/").rpartition("/")[2]
    if page := page_of(key):
        return f"{name}, page {page}"
    is_file = path != key or path.startswith("/") or _SUFFIX.search(name)
    if not title or not is_file or title.casefold() in _names_of(name):
        return title or key
    return f"{title} ({name})"


def _names_of(file: str) -> tuple[str, ...]:
    """What a title may be that says no more than a file's name."""
    stem = PurePath(file).stem
    return tuple(name.casefold() for name in (file, stem, stem.replace("_", " ")))


def with_file(read: FileDocument) -> Mapping[str, str]:
    """The metadata of a document, with its file where it is a record of one."""
    return read.metadata if read.key == read.source else {**read.metadata, FILE: read.source}


class Named(NamedTuple):
    """A stored document with all that people may call it. file: the key of the file that it is from."""

    knowledge_base: str
    key: str
    title: str
    file: str


def called(documents: Iterable[Named], name: str, *, folders: bool = False) -> list[Named]:
    """The documents that people call so: one, or all pages and rows of a file; none where `name` is empty.

    By key or file, also as a path from the working folder; else by the file's name or a title; else by the file's name
    without its ending. In one of several knowledge bases it is `NAME: KEY`. folders: the path of a folder names all of
    its files. Raises InvalidInput, which lists the files, where several are called so.
    """
    known, path = list(documents) if name else [], _path(name)
    if files := [one for one in known if name in _full_names(one)] or [
        one for one in known if path in (one.key, one.file)
    ]:
        return _of_one(files, name)
    if folders and (inside := [one for one in known if one.file.startswith((f"{name}/", f"{path}/"))]):
        return inside
    folded = _folded(name)
    named = [one for one in known if folded in (_folded(one.title), _folded(PurePath(one.file).name))]
    return _of_one(named or [one for one in known if folded == _folded(PurePath(one.file).stem)], name)


def unknown_document(documents: Iterable[Named], name: str) -> InvalidInput:
    """The error for a name that no document has; of more documents than it lists, those that are called most alike."""
    known = list(documents)
    if len({one.file for one in known}) > MOST_NAMED:
        known.sort(key=lambda one: _likeness(one, name), reverse=True)
    there = _listed(list(dict.fromkeys(one.file for one in known))) or "none"
    return InvalidInput(f"there is no document {shortened(name)!r} on this device; there are: {there}")


def _full_names(one: Named) -> tuple[str, ...]:
    return one.key, one.file, f"{one.knowledge_base}: {one.key}", f"{one.knowledge_base}: {one.file}"


def _folded(name: str) -> str:
    """Without the differences between capitals, and between systems that write ä as one character or as two."""
    return unicodedata.normalize("NFC", name.casefold())


def _of_one(found: list[Named], name: str) -> list[Named]:
    """What was found, which is to be of one file; raises InvalidInput."""
    files = dict.fromkeys((one.knowledge_base, one.file) for one in found)
    if len(files) > 1:
        several = len({base for base, _ in files}) > 1
        shown = [f"{base}: {file}" if several else file for base, file in files]
        raise InvalidInput(f"several documents are called {shortened(name)!r}: name one of {_listed(shown)}")
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _likeness(one: Named, name: str) -> float:
    """From 0 to 1, of the file's name or the title."""
    typed = _folded(PurePath(name).name)
    own = (_folded(PurePath(one.file).name), _folded(one.title))
    return max(SequenceMatcher(None, typed, other).ratio() for other in own)


def below(stored: Mapping[str, str], typed: str) -> list[str]:
    """The documents, of {key: key of its file}, that a path names: one, all of a file, or all of a folder."""
    names = paths_of(typed)
    found = [key for key, file in stored.items() if key in names or file in names]
    return found or [key for key, file in stored.items() if file.startswith(f"{names[-1]}/")]


def paths_of(typed: str) -> tuple[str, ...]:
    """What a document or folder may be called in full that is typed so: that itself, and its path."""
    return tuple(dict.fromkeys((typed, _path(typed))))


def _path(typed: str) -> str:
    """The path in the file system; what is typed where it can be none, such as one of a user that is not there."""
    try:
        return str(absolute(Path(typed)))
    except (OSError, ValueError, RuntimeError):
        return typed
