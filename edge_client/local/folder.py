"""`LocalKnowledgeBases`: the local knowledge bases of a folder, each a file, searched together."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from edge_client.errors import StorageError
from edge_client.local.database import disk_errors, merge_journal
from edge_client.local.knowledge_base import (
    EmptyKnowledgeBase,
    LocalKnowledgeBase,
    content_hashes,
    kept_documents,
    read_head,
    unfinished_files,
)
from edge_client.local.records import LocalDocument
from edge_client.local.store import JOURNALS, SUFFIX, LocalStore, files_of
from edge_client.local.writer import MemoryWriter
from edge_client.retrieval import RetrievalResult, merged, names_of
from memory3.errors import CorruptFile, IdentityMismatch, InvalidInput, Memory3Error, MissingFile
from memory3.files.bundle import Bundle, Manifest
from memory3.files.knowledge_file import Head
from memory3.formats import FileDocument
from memory3.formats.document import composed
from memory3.formats.naming import FilesRead, called, unknown_document, with_file
from memory3.text.tokenizer import well_formed

log = logging.getLogger("edge_client.local")
DEFAULT_NAME = "mine"
TEXT_LIMIT = 16 << 20
"""Characters of a document: hours of writing."""
PIECE = 8
"""References that are written and stored together: what a killed process has to write again."""


@dataclass(frozen=True)
class DocumentOutcome:
    """What became of a document, or how far one is. outcome: writing, stored, unchanged, failed or dropped.

    where: for people. done: its references that are stored, of `references`. reason, message: why it failed.
    """

    where: str
    key: str
    outcome: str
    done: int = 0
    references: int = 0
    reason: str = ""
    message: str = ""


class LocalKnowledgeBases:
    """The knowledge bases of one bundle in a store: the device's own and memory packs. Thread-safe."""

    def __init__(
        self, store: LocalStore | Path, bundle: Bundle, *, minimum_score: float | None = None, only: str = ""
    ) -> None:
        """Opens what is there, or `only` one; raises what LocalKnowledgeBase.open raises: none is left out silently.

        store: a folder is one that was named. In the user's store, those of other models are left to them.
        """
        self.store = LocalStore(store) if isinstance(store, Path) else store
        self._bundle, self._minimum_score, self._only = bundle, minimum_score, only
        self._lock = threading.Lock()
        self._open: dict[Path, tuple[tuple[int, ...], LocalKnowledgeBase]] = {}  # with device and inode
        self._unusable: dict[Path, tuple[int, ...]] = {}  # reported once, as `_seen` returns them
        self._unavailable: set[Path] = set()  # reported once, and tried again
        for path in self._paths():
            with contextlib.suppress(EmptyKnowledgeBase):  # as if it were not there; `base` fills it
                self._take_in(path)

    def __len__(self) -> int:
        """Knowledge bases of the device's own; without one, a recall has nothing to search here."""
        return len(self._own())

    @property
    def names(self) -> list[str]:
        """The names of the device's own."""
        return [base.path.stem for base in self._own()]

    def documents(self) -> dict[str, list[LocalDocument]]:
        """The documents of every knowledge base of the device's own, by its name."""
        return {base.path.stem: base.documents() for base in self._own()}

    @property
    def elsewhere(self) -> dict[str, str]:
        """Names of the device's own that only other models have in the user's store, each with its model for people."""
        with self._lock:
            own = {path.stem for path in self._open}
        found = {}
        for path in self.store.files():
            with contextlib.suppress(Memory3Error):  # what is wrong with it is told to those who read it
                if path.stem not in own and not (head := read_head(path)).pulled:
                    found[path.stem] = self.store.model_of(path, head)
        return found

    def base(self, name: str, dimension: int = 0) -> LocalKnowledgeBase:
        """One by name; with the dimension of its vectors, it is made where it is missing.

        Raises MissingFile, and InvalidInput for one that was pulled from a service.
        """
        path = self.store.path(name, self._bundle.manifest)
        with self._lock:
            self._refresh()
            if name in {base.name for _, base in self._open.values() if base.head.pulled}:
                raise InvalidInput(f"{name!r} was pulled from a service: choose another name with --kb")
            if path not in self._open:
                try:
                    self._take_in(path)
                except MissingFile:
                    if not path.is_file() and not dimension:
                        raise self.store.missing(name) from None
                    if not dimension:
                        raise
                    self.store.make()
                    head = Head.of(name, self._bundle.identity, self._bundle.manifest.embedder_id, dimension)
                    made = LocalKnowledgeBase.create(path, head, minimum_score=self._minimum_score)
                    self._open[path] = _seen(path)[:2], made
            return self._open[path][1]

    def forget(self, name: str, document: str, *, folders: bool = False) -> list[str]:
        """Remove a document, in the user's store from what other models have by this name, too; the keys that went.

        document: as people call it (`memory3.formats.naming.called`). Raises as `base` does, and InvalidInput.
        """
        self.base(name)  # refuses one that is not there, or was pulled
        own = [path for path in self.store.named(name) if not read_head(path).pulled]
        return forget(own, document, folders=folders)

    def document(self, name: str) -> tuple[LocalKnowledgeBase, list[str]]:
        """The knowledge base and the keys of the document that people call so (`memory3.formats.naming.called`).

        Pages and rows of a file are one document, in their order. Raises InvalidInput for none, and for several.
        """
        bases = {base.name: base for base in self._own()}
        known = [one for base in bases.values() for one in base.named()]
        if found := called(known, name):
            return bases[found[0].knowledge_base], [one.key for one in found]
        raise unknown_document(known, name)

    def stand_ins(self, names: str) -> list[LocalKnowledgeBase]:
        """Packs of the knowledge bases "atlas,firm", to be searched where their service does not answer."""
        with self._lock:
            self._refresh()
            pulled = {base.name: base for _, base in self._open.values() if base.head.pulled}
        return [pulled[name] for name in names_of(names) if name in pulled]

    def retrieve(self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = ()) -> RetrievalResult:
        """The k best of the device's own, as `LocalKnowledgeBase.retrieve`; raises what it raises if none answers.

        One that fails is logged, and the others are read on.
        """
        answers, failed = list[RetrievalResult](), None
        for base in self._own():
            try:
                answers.append(base.retrieve(vectors, k=k, words=words))
            except (StorageError, CorruptFile) as error:
                failed = error
                with self._lock:
                    self._note(base.path, error)
        if failed is not None and not answers:
            raise failed
        return merged(answers, k, words) if answers else RetrievalResult(((),) * len(vectors))

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for _, base in self._open.values():
                base.close()

    def _own(self) -> list[LocalKnowledgeBase]:
        with self._lock:
            self._refresh()
            return [base for _, base in self._open.values() if not base.head.pulled]

    # Everything below is called with the lock held.

    def _paths(self) -> list[Path]:
        folders = dict.fromkeys((self.store.folder, self.store.folder_of(self._bundle.manifest)))
        return [path for folder in folders for path in files_of(folder) if self._only in ("", path.stem)]

    def _refresh(self) -> None:
        """Take in the files that other processes made or replaced meanwhile, and leave those that are gone.

        One that this bundle cannot read is logged, and the others are read on. What the disk does not let open is
        tried again the next time.
        """
        try:
            there = {path: seen for path in self._paths() if any(seen := _seen(path))}
        except StorageError as error:  # those that are open are read on
            self._note(self.store.folder, error)
            return
        self._unavailable.discard(self.store.folder)
        for path in [path for path, (file, _) in self._open.items() if there.get(path, ())[:2] != file]:
            del self._open[path]  # its last search closes it
        for path, seen in there.items():
            if path in self._open or self._unusable.get(path) == seen:
                continue
            try:
                self._take_in(path)
            except MissingFile:  # it is being made
                continue
            except StorageError as error:
                self._note(path, error)
            except Memory3Error as error:
                self._unusable[path] = seen
                log.warning("a new knowledge base is not read: %s", error)

    def _note(self, path: Path, error: StorageError | CorruptFile) -> None:
        if path not in self._unavailable:
            self._unavailable.add(path)
            log.warning("a knowledge base is not read until that is mended: %s", error)

    def _take_in(self, path: Path) -> None:
        seen, identity = _seen(path), self._bundle.identity
        try:
            base = LocalKnowledgeBase.open(
                path, identity, self._bundle.manifest.embedder_id, minimum_score=self._minimum_score
            )
        except IdentityMismatch:
            if not self.store.by_model or path.parent != self.store.folder:
                raise
            self._unusable[path] = seen  # another model's, from an earlier release
        else:
            self._open[path] = seen[:2], base
            self._unavailable.discard(path)


def _seen(path: Path) -> tuple[int, ...]:
    """Device and inode of a file, and when it was written: what replaced another one has only its name.

    An inode is not given again while its file is open, but may be to a file that takes the place of a damaged one.
    Nothing for a file that is gone; raises StorageError.
    """
    try:
        with disk_errors(path):
            found = path.stat()
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ()
        raise
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remember(
    base: LocalKnowledgeBase, writer: MemoryWriter, documents: Iterable[FileDocument]
) -> Iterator[DocumentOutcome]:
    """Write documents into a knowledge base; what is there unchanged costs nothing, what is there in part goes on.

    Yields before every piece that is written ("writing"), and once for every document with its outcome. One that cannot
    be read or split fails alone. documents: all of each file, by `FileDocument.source`, one file after the other; pages
    and rows that a file no longer has are dropped at the end. A file of which a part is missing, because writing ended
    early, has a document with fewer references than `whole`. Raises StorageError and CorruptFile of the knowledge base.
    """
    files = FilesRead()
    for file, parts in groupby(documents, key=lambda read: read.source):
        has_parts = False
        for each in parts:
            read = replace(each, title=writer.fitting_title(composed(each.title)), text=composed(each.text))
            files.add(file, read.key, readable=not read.unreadable)
            for one in _remembered(base, writer, read):
                is_part = read.key != file
                if is_part and one.outcome == "writing":
                    base.begin(file)
                has_parts |= is_part and one.outcome in ("stored", "unchanged")
                yield one
        if has_parts:
            base.finish(file)
    for key in files.left_over(base.files()):
        if base.delete(key):
            yield DocumentOutcome(key, key, "dropped")


def _remembered(base: LocalKnowledgeBase, writer: MemoryWriter, read: FileDocument) -> Iterator[DocumentOutcome]:
    """Write one document, or fail it where it cannot be read or split."""
    try:
        yield from _written(base, writer, read)
    except InvalidInput as error:
        yield DocumentOutcome(read.where, read.key, "failed", reason=error.reason, message=str(error))


def _written(base: LocalKnowledgeBase, writer: MemoryWriter, read: FileDocument) -> Iterator[DocumentOutcome]:
    text, document = readable(read), LocalDocument(read.key, read.title, read.text, with_file(read))
    done, whole = base.stored(document)
    if whole and done == whole:
        yield DocumentOutcome(read.where, read.key, "unchanged", done, whole)
        return
    texts = writer.split(text, read.title)
    if whole not in (0, len(texts)):
        done = 0  # a tokenizer that cuts otherwise
    while done < len(texts):
        yield DocumentOutcome(read.where, read.key, "writing", done, len(texts))
        piece = texts[done : done + PIECE]
        base.add(document, piece, writer.write(piece), first=done, whole=len(texts))
        done += len(piece)
    yield DocumentOutcome(read.where, read.key, "stored", done, len(texts))


def forget(paths: Sequence[Path], document: str, *, folders: bool = False) -> list[str]:
    """Remove a document, as people call it, from the files of a knowledge base of any model; the keys that went.

    folders: the path of a folder names all of its files. Raises InvalidInput where several are called so.
    """
    with contextlib.ExitStack() as opened:
        bases = [opened.enter_context(contextlib.closing(LocalKnowledgeBase.any(path))) for path in paths]
        found = called([one for base in bases for one in base.named()], document, folders=folders)
        keys = list(dict.fromkeys(one.key for one in found))
        for base in bases:
            base.delete(*keys)
    return keys


def correct(
    base: LocalKnowledgeBase, writer: MemoryWriter, document: LocalDocument, chunk_number: int, text: str
) -> bool:
    """Replace the text of one memory of a document, without the document's title; whether the memory was there.

    Raises InvalidInput for an empty text and one that a single memory cannot hold.
    """
    key, title = document.key, document.title
    texts = writer.split(readable(FileDocument(key, key, title, composed(text))), title)
    if len(texts) > 1:
        most = writer.bundle.config.memory.reference_tokens
        raise InvalidInput(f"one memory holds {most} tokens with its title: shorten the text, or add a document")
    return base.correct(document, chunk_number, texts[0], writer.write(texts))


def readable(read: FileDocument) -> str:
    """The text of a document that memories can be written of; raises InvalidInput for another."""
    if read.unreadable:
        raise InvalidInput(read.unreadable)
    if not read.key.strip():
        raise InvalidInput("it has no key, by which it is named as a source and forgotten")
    if len(read.text) > TEXT_LIMIT:
        raise InvalidInput(f"it has {len(read.text):,} characters, at most {TEXT_LIMIT:,}: cut it into several")
    if "\0" in read.text:
        raise InvalidInput("it is binary, no text: it holds NUL characters")
    if well_formed(named := f"{read.key}{read.title}{read.text}") != named:
        raise InvalidInput("it holds half of a surrogate pair, which is no character")
    if not read.text.strip():
        raise InvalidInput("it has no text")
    return read.text


def to_write_anew(store: LocalStore, name: str, manifest: Manifest) -> Path:
    """The knowledge base whose texts `write_anew` takes: of the user's store, the newest one of another model.

    Raises MissingFile where there is none.
    """
    own = store.path(name, manifest)
    others = [path for path in store.named(name) if path != own]
    newest = max(others, key=lambda path: path.stat().st_mtime, default=own)
    if not newest.is_file():
        raise store.missing(name)
    read_head(newest)
    return newest


def write_anew(store: LocalStore, name: str, writer: MemoryWriter) -> Iterator[DocumentOutcome]:
    """Write a knowledge base of another bundle for this one, from its kept texts.

    In a folder that was named, the new one replaces the old one when it is complete. In the user's store, the other
    model keeps its own, and what the bundle has by this name gets the documents that it lacks. Interrupted, the next
    call goes on. Raises MissingFile, CorruptFile, StorageError.
    """
    manifest, identity = writer.bundle.manifest, writer.bundle.identity
    kept, path = to_write_anew(store, name, manifest), store.path(name, manifest)
    replaces = kept == path
    made = path.with_suffix(f"{SUFFIX}.anew") if replaces else path
    try:
        base = LocalKnowledgeBase.open(made, identity, manifest.embedder_id)
    except (MissingFile, IdentityMismatch):
        remove(made)
        store.make()
        base = LocalKnowledgeBase.create(made, Head.of(name, identity, manifest.embedder_id, writer.embedder.dim))
    newer = () if replaces else base.files().keys()
    hashes, failed = content_hashes(kept), False
    for one in remember(base, writer, (document for document in _kept(kept) if not _differs(base, document, newer))):
        failed = failed or one.outcome == "failed"
        if one.outcome in ("stored", "unchanged"):  # of the file, also where its text was corrected since
            base.take_content_hash(one.key, hashes[one.key])
        yield one
    for file in unfinished_files(kept):
        base.begin(file)
    base.close()
    if replaces and not failed:
        install(made, path)


def _differs(base: LocalKnowledgeBase, read: FileDocument, keys: Collection[str]) -> bool:
    """Whether the base has another text by the document's key."""
    same = base.stored(LocalDocument(read.key, read.title, read.text, read.metadata))
    return read.key in keys and same == (0, 0)


def _kept(path: Path) -> Iterator[FileDocument]:
    for document in kept_documents(path):
        yield FileDocument(
            document.key,
            document.key,
            document.title,
            document.text or "",
            document.metadata,
            unreadable="" if document.text is not None else "its text was not kept: remember its file again",
        )


def install(made: Path, path: Path) -> None:
    """Replace a file by a finished one, in one step; raises StorageError, and leaves the old one with all it holds.

    What is only in the old one's journal goes into its file first: a journal that stayed would be taken for the new
    one's.
    """
    with disk_errors(path):
        merge_journal(made)
        if path.is_file():
            with contextlib.suppress(CorruptFile):
                merge_journal(path)
        _remove_journal(path)
        made.replace(path)


def remove(path: Path) -> None:
    """Remove a knowledge base's file and what SQLite keeps next to it; raises StorageError."""
    with disk_errors(path):
        path.unlink(missing_ok=True)
        _remove_journal(path)


def _remove_journal(path: Path) -> None:
    for suffix in JOURNALS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
