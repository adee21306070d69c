"""`FileSync`: the documents of a knowledge base follow the files and folders that they were read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from edge_client.local.folder import DocumentOutcome, remember
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.records import LocalDocument
from edge_client.local.writer import MemoryWriter
from memory3.errors import InvalidInput, MissingFile
from memory3.formats import FileDocument, Report, find_sources, read_documents
from memory3.formats.document import NO_TEXT
from memory3.formats.naming import Naming

_Version = tuple[int, int, int]
"""Of a file: times when it was last written and last changed, its permissions too, in nanoseconds, and size."""


class FileSync:
    """Writes what is new or changed, and drops what is gone. One thread at a time.

    What `bring` did not finish, because the disk failed, is found again by the next `look`.
    base: opens the knowledge base, and makes it if it is called with True; raises MissingFile otherwise. keep: what is
    gone stays.
    """

    def __init__(
        self, base: Callable[[bool], LocalKnowledgeBase], writer: MemoryWriter, naming: Naming, keep: bool = False
    ) -> None:
        self._base, self._writer, self._naming, self._keep = base, writer, naming, keep
        self._there: dict[Path, _Version] = {}
        self._looked = False
        self._removed = True  # or not known yet
        self.report = Report()
        """Of the last look, and of what was read since."""

    def look(self) -> list[Path]:
        """The files that are new or changed since the last look.

        Raises MissingFile, and at the first look InvalidInput for a file of no known kind.
        """
        there: dict[Path, _Version] = {}
        self.report = Report()
        for path in self._naming.paths:
            try:
                found = find_sources([path], self.report)
            except (InvalidInput, MissingFile):
                if not self._looked and not path.is_dir():
                    raise
                found = []  # a folder that has become empty
            for source in found:
                try:
                    status = source.stat()
                except FileNotFoundError:  # gone since it was found
                    continue
                there[source] = status.st_mtime_ns, status.st_ctime_ns, status.st_size
        changed = [source for source, version in there.items() if self._there.get(source) != version]
        self._removed = self._removed or not self._there.keys() <= there.keys()
        self._there, self._looked = there, True
        return changed

    def bring(self, changed: Sequence[Path]) -> Iterator[DocumentOutcome]:
        """Write these files, and drop what is gone; yields as `remember` does, and `dropped` for each that went.

        Raises InvalidInput where there is neither a file nor a document, StorageError, CorruptFile.
        """
        if not changed and not self._removed:
            return
        try:
            yield from self._brought(changed)
        except BaseException:
            for source in changed:
                self._there.pop(source, None)
            raise
        self._removed = False

    def _brought(self, changed: Sequence[Path]) -> Iterator[DocumentOutcome]:
        try:
            base = self._base(bool(self._there))
        except MissingFile:
            find_sources(self._naming.paths)  # says what is missing
            raise
        reading = _Reading(self._naming, base, self.report)
        for one in remember(base, self._writer, reading.documents(changed)):
            yield one
            if one.outcome == "stored" and (old := reading.renamed.get(one.key)):
                base.delete(old)
        if self._keep:
            return
        stored = base.files()
        there = {self._naming.key(source) for source in self._there} - reading.empty
        emptied = [key for key, file in stored.items() if file in reading.empty]
        for key in dict.fromkeys([*self._naming.gone(stored, there, self.report), *emptied]):
            if base.delete(key):
                yield DocumentOutcome(key, key, "dropped")


class _Reading:
    """What is learned of files while their documents are read.

    empty: files without a word. renamed: by its key, the relative path by which an earlier release named the same text.
    """

    def __init__(self, naming: Naming, base: LocalKnowledgeBase, report: Report) -> None:
        self._naming, self._base, self._report = naming, base, report
        self.empty: set[str] = set()
        self.renamed: dict[str, str] = {}

    def documents(self, sources: Iterable[Path]) -> Iterator[FileDocument]:
        """The documents of the files, one at a time."""
        for source in sources:
            file = self._naming.key(source)
            for read in read_documents(source, Path(file), self._report):
                by_source = LocalDocument(str(source), read.title, read.text, read.metadata)
                if read.unreadable == NO_TEXT:
                    self.empty.add(file)
                elif read.key == file and not read.unreadable and self._base.has(by_source):
                    self.renamed[file] = by_source.key
                yield read
