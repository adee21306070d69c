"""Fetches the edge bundle and memory packs from the service: resumable, every byte checked, installed whole.

bundle   manifest.json -> names and sizes checked, room checked -> file by file from its offset -> SHA-256 -> install
pack     head -> room checked -> pages of memories after the last one that came, each checked -> install

A pack is a local knowledge base that a service wrote. It stands in for the service where that does not answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import numpy as np

from edge_client.errors import RetrievalError, StorageError
from edge_client.local.database import disk_errors
from edge_client.local.folder import path_of, remove
from edge_client.local.knowledge_base import LocalKnowledgeBase, read_head
from edge_client.local.records import Head, Reference
from edge_client.wire.channel import ChannelSettings, named_errors, open_channel
from memory3.bundle import MANIFEST, REQUIRED, Bundle, FileEntry, Manifest, check_place, replace_folder
from memory3.codec.payload import Identity
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from protos.memory.v1 import knowledge_bases_pb2 as bases
from protos.memory.v1 import knowledge_bases_pb2_grpc, models_pb2, models_pb2_grpc

MARGIN_BYTES = 16 << 20
"""Left free on the disk beside what is fetched."""
CALL_S = 60.0
"""Deadline of one stream. A longer file takes several, each from where the last one stopped."""
ATTEMPTS = 5
"""Streams in a row that bring nothing before a pull gives up."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
LARGEST_MANIFEST_BYTES = 4 << 20
ROW_BYTES = 256
"""Of a memory's numbers, names and places in a pack, about."""
STARTS = 4
"""Times that a pull of a pack starts anew because the knowledge base was written to, before it gives up."""
CHANGED = "KNOWLEDGE_BASE_CHANGED"
"""The service's reason, and ours, where what was collected is of a revision that is no more."""
_PAUSE_S = 1.0
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")

Progress = Callable[[int, int, str], None]
"""Called often with bytes done, bytes in all, and what is being fetched; what it raises ends the pull."""


def pull_bundle(channel: ChannelSettings, place: Path, *, progress: Progress = lambda *_: None) -> Bundle:
    """Fetch the service's bundle to the folder `place`; an older bundle there is replaced when the new one is whole.

    Interrupted, by Ctrl-C or whatever, the next call goes on where it stopped; equal files of the older bundle do not
    come again. Raises RetrievalError, StorageError, InvalidInput for a place that holds something else, CorruptFile for
    a manifest that is none or a file that does not become what the manifest says.
    """
    place = place.absolute()
    check_place(place)
    with _staged(place) as folder, open_channel(channel) as opened:
        return _BundlePull(channel, models_pb2_grpc.ModelsStub(opened).FetchBundle, progress).run(folder, place)


def pull_pack(
    channel: ChannelSettings,
    knowledge_base: str,
    folder: Path,
    *,
    identity: Identity | None = None,
    embedder_id: str = "",
    progress: Progress = lambda *_: None,
) -> Head:
    """Fetch the memories of `knowledge_base` to the folder of local knowledge bases, in place of an older pack of it.

    identity, embedder_id: of the bundle that will read it; the service refuses another one's. Interrupted, the next
    call goes on where it stopped. Raises RetrievalError (DAMAGED_MEMORY for a memory that came damaged), StorageError
    (KNOWLEDGE_BASE_CHANGING where it is written to again and again), InvalidInput where the device has a knowledge base
    of its own by that name.
    """
    place = path_of(folder, knowledge_base).absolute()
    if place.exists() and not read_head(place).pulled:
        raise InvalidInput(f"{place} holds this device's own memories: choose another folder with --local")
    request = bases.ExportKnowledgeBaseRequest(name=knowledge_base, embedder_id=embedder_id)
    if identity is not None:
        request.model_id, request.codec_id = identity.model_id, identity.codec_id
        request.memory_format_id = identity.memory_format_id
    with _staged(place) as staging, open_channel(channel) as opened:
        method = knowledge_bases_pb2_grpc.KnowledgeBasesStub(opened).ExportKnowledgeBase
        pull = _PackPull(channel, method, request, staging / place.name, progress)
        for start in range(STARTS):
            try:
                head = _resumed(pull.go_on, lambda: pull.pages)
            except RetrievalError as error:
                if error.reason != CHANGED:
                    raise
                remove(pull.file)
                time.sleep(_PAUSE_S * start)
                continue
            remove(place)
            pull.file.replace(place)
            return head
    raise StorageError(
        f"knowledge base {knowledge_base!r} was written to {STARTS} times while it was being fetched: run the same"
        " command when its ingestion is over",
        reason="KNOWLEDGE_BASE_CHANGING",
    )


def staging_of(place: Path) -> Path:
    """The folder in which what comes for `place` waits until it is whole; it stays where something is left to come."""
    return place.with_name(f".{place.name}.pull")


@contextmanager
def _staged(place: Path) -> Iterator[Path]:
    """That folder, locked for this process. Raises StorageError (PULL_UNDER_WAY, and those of `disk_errors`)."""
    folder = staging_of(place)
    with disk_errors(place):
        lock = _locked(folder, place)
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):  # not empty: what came is kept; not there: it was installed
                folder.rmdir()
            os.close(lock)


def _locked(folder: Path, place: Path) -> int:
    """The staging folder of `place`, made, opened and locked. Another process may remove or install it meanwhile."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), folder.stat()):
                    return lock
                os.close(lock)
            except BlockingIOError as error:
                os.close(lock)
                message = f"another process is fetching to {place}: wait for it, or choose another place"
                raise StorageError(message, reason="PULL_UNDER_WAY") from error


def _require_room(folder: Path, needed_bytes: int) -> None:
    """Raise StorageError (DISK_FULL) unless so many more bytes fit."""
    free = shutil.disk_usage(folder).free
    if needed_bytes + MARGIN_BYTES > free:
        raise StorageError(
            f"{folder.parent} needs {needed_bytes / 1e6:.0f} MB more, {free / 1e6:.0f} MB are free:"
            " make room or choose another place; what was fetched is kept",
            reason="DISK_FULL",
        )


def _stream(channel: ChannelSettings, method: Any, request: Any) -> Iterator[Any]:
    """The messages of a stream, which ends with the iterator; raises RetrievalError."""
    # In a thread, which Ctrl-C does not reach: interrupted while it begins a call, gRPC never closes the channel.
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(method, request, timeout=CALL_S, metadata=channel.metadata).result()
    try:
        with named_errors(channel.address, CALL_S):
            yield from call
    finally:
        call.cancel()


def _resumed(step: Callable[[], T], received: Callable[[], int]) -> T:
    """The step's result; a step whose stream broke is repeated, for as long as that brings it further.

    received: grows when a step brought something. Raises the RetrievalError of the last of ATTEMPTS vain steps.
    """
    vain, before = 0, received()
    while True:
        try:
            return step()
        except RetrievalError as error:
            now = received()
            vain, before = (1 if now > before else vain + 1), now
            broke = error.unavailable or error.reason in ("SERVICE_FAILED", "INTERNAL")
            if not broke or error.reason == "CERTIFICATE" or vain >= ATTEMPTS:
                raise
            time.sleep(min(FIRST_PAUSE_S * 2 ** (vain - 1), LONGEST_PAUSE_S))


def _ended(what: str, done: int, of: int) -> RetrievalError:
    return RetrievalError(f"{what} ended after {done} of {of}", reason="UNREACHABLE", unavailable=True)


class _BundlePull:
    """One run. While it comes, a file's name ends with its SHA-256, so what a run left is known by its name."""

    def __init__(self, channel: ChannelSettings, method: Any, progress: Progress) -> None:
        self._channel, self._method, self._progress = channel, method, progress
        self._done: dict[str, int] = {}  # bytes of every file
        self._total_bytes = 0

    def run(self, folder: Path, place: Path) -> Bundle:
        raw = _resumed(self._manifest, lambda: 0)
        manifest = checked_manifest(raw)
        self._total_bytes = sum(entry.bytes for entry in manifest.files.values())
        files = {name: (entry, folder / f"{name}.{entry.sha256}") for name, entry in manifest.files.items()}
        for path in set(folder.iterdir()) - {part for _, part in files.values()}:
            path.unlink()
        for name, (entry, part) in files.items():
            older = place / name
            if not _size(part) and older.is_file() and older.stat().st_size == entry.bytes:
                with contextlib.suppress(OSError):  # no hard links here: it comes again
                    os.link(older, part)
        _require_room(folder, sum(max(entry.bytes - _size(part), 0) for entry, part in files.values()))
        for name, (entry, part) in files.items():
            self._complete(name, entry, part)
        for name, (_, part) in files.items():
            part.rename(folder / name)
        (folder / MANIFEST).write_bytes(raw)
        for path in folder.iterdir():
            with path.open("rb") as written:
                os.fsync(written.fileno())
        replace_folder(folder, place)
        return Bundle(place, manifest)

    def _manifest(self) -> bytes:
        raw = b""
        for piece in self._pieces(MANIFEST, 0):
            raw += piece.data
            if max(piece.file_bytes, len(raw)) > LARGEST_MANIFEST_BYTES:
                raise CorruptFile(f"the service's {MANIFEST} has {piece.file_bytes} bytes: it is none")
        return raw

    def _complete(self, name: str, entry: FileEntry, part: Path) -> None:
        """Make the file whole and right; one that does not become so is fetched anew, once."""
        for _ in range(2):
            _resumed(lambda: self._fetch(name, entry, part), lambda: _size(part))
            if file_sha256(part) == entry.sha256:
                return
            part.unlink()
        raise CorruptFile(
            f"{name} of the service at {self._channel.address} is not what its manifest says (SHA-256 differs):"
            " its operator exports the bundle again"
        )

    def _fetch(self, name: str, entry: FileEntry, part: Path) -> None:
        """Append what is missing."""
        with part.open("ab") as file:
            offset = file.tell()
            self._show(name, offset)
            for piece in self._pieces(name, offset) if offset < entry.bytes else ():
                data = piece.data
                if (piece.offset, piece.file_bytes) != (offset, entry.bytes) or offset + len(data) > entry.bytes:
                    message = f"{name} changed on the service while it was fetched: run the same command again"
                    raise CorruptFile(message)
                file.write(data)
                offset += len(data)
                self._show(name, offset)
        if offset < entry.bytes:
            raise _ended(name, offset, entry.bytes)

    def _pieces(self, name: str, offset: int) -> Iterator[models_pb2.FetchBundleResponse]:
        return _stream(self._channel, self._method, models_pb2.FetchBundleRequest(file=name, offset=offset))

    def _show(self, name: str, done_bytes: int) -> None:
        self._done[name] = done_bytes
        self._progress(sum(self._done.values()), self._total_bytes, name)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def checked_manifest(raw: bytes) -> Manifest:
    """A manifest whose files may be written: plain names, sizes that can be; raises CorruptFile."""
    manifest = Manifest.from_json(raw)
    for name, entry in manifest.files.items():
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST:
            raise CorruptFile(f"the service's {MANIFEST} lists {name[:200]!r}, which is no plain file name: refused")
        if not isinstance(entry.bytes, int) or entry.bytes < 0 or not _SHA256.fullmatch(str(entry.sha256)):
            raise CorruptFile(f"the service's {MANIFEST} gives no size and SHA-256 of {name}")
    if missing := [name for name in REQUIRED if name not in manifest.files]:
        raise CorruptFile(f"the service's {MANIFEST} does not list {', '.join(missing)}")
    return manifest


class _PackPull:
    """One pack, over as many streams as it takes. file: where it is collected. pages: that came."""

    def __init__(
        self,
        channel: ChannelSettings,
        method: Any,
        request: bases.ExportKnowledgeBaseRequest,
        file: Path,
        progress: Progress,
    ) -> None:
        self._channel, self._method, self._request, self._progress = channel, method, request, progress
        self.file, self.pages = file, 0

    def go_on(self) -> Head:
        """One stream, from where the last one stopped; the pack's head when everything is there."""
        request = bases.ExportKnowledgeBaseRequest()
        request.CopyFrom(self._request)
        ids, known = np.zeros(0, np.uint64), None
        with contextlib.suppress(MissingFile, CorruptFile), closing(LocalKnowledgeBase.any(self.file)) as base:
            ids, known = base.memory_ids(), base.head  # of an interrupted pull
            request.revision = known.revision
        if len(ids):
            request.after_id = int(ids[-1])
        responses = _stream(self._channel, self._method, request)
        head, each = self._head(responses)
        if known is None:
            remove(self.file)
            LocalKnowledgeBase.create(self.file, head).close()
        elif head != known:
            raise RetrievalError(reason=CHANGED)
        count, digest = len(ids), int(np.bitwise_xor.reduce(ids)) if len(ids) else 0
        last_id = int(ids[-1]) if count else None
        _require_room(self.file.parent, (head.memories - count) * each)
        self._progress(count * each, head.memories * each, head.name)
        with closing(LocalKnowledgeBase.any(self.file)) as base:
            for response in responses:
                page = list(_checked(response.page, head, last_id))
                base.append(page)
                for one in page:
                    digest, last_id = digest ^ one.memory_id, one.memory_id
                count += len(page)
                self.pages += 1
                self._progress(count * each, head.memories * each, head.name)
            if count < head.memories:
                raise _ended("the export", count, head.memories)
            if digest != head.id_digest:
                raise RetrievalError(reason=CHANGED)
            base.merge_journal()
        return head

    def _head(self, responses: Iterator[bases.ExportKnowledgeBaseResponse]) -> tuple[Head, int]:
        """What comes, and the bytes of each memory, about."""
        first = next(responses, None)
        if first is None or not first.HasField("head"):
            message = f"the service at {self._channel.address} sent an export without its head"
            raise RetrievalError(message, reason="INCOMPATIBLE")
        sent, base = first.head, first.head.knowledge_base
        head = Head(
            base.name,
            base.model_id,
            base.codec_id,
            base.memory_format_id,
            base.embedder_id,
            base.dimension,
            sent.rerank_candidates,
            sent.revision,
            sent.memory_count,
            sent.id_digest,
        )
        if head.memories == 0:
            raise StorageError(f"knowledge base {head.name!r} has no memories: ingest documents first")
        row_bytes = 4 * head.dimension + ROW_BYTES
        return head, (sent.payload_bytes + sent.text_bytes) // head.memories + row_bytes


def _checked(page: bases.ExportPage, head: Head, last_id: int | None) -> Iterator[Reference]:
    """The memories of a page as they are packed; raises RetrievalError (DAMAGED_MEMORY)."""
    for memory in page.memories:
        memory_id, raw, payload = memory.memory_id, memory.vector, memory.payload
        vector = np.frombuffer(raw, "<f4") if len(raw) == 4 * head.dimension else np.zeros(1)
        norm = float(np.linalg.norm(vector.astype(np.float64)))
        in_order = last_id is None or memory_id > last_id
        if not (in_order and np.isfinite(norm) and norm > 0 and google_crc32c.value(payload) == memory.payload_crc32c):
            raise RetrievalError(
                f"memory {memory_id:016x} of {memory.document_key!r} came damaged", reason="DAMAGED_MEMORY"
            )
        last_id = memory_id
        yield Reference(
            memory_id,
            memory.document_key,
            memory.title,
            memory.chunk_number,
            memory.text,
            (vector / norm).astype("<f4"),
            payload,
            memory.payload_crc32c,
        )
