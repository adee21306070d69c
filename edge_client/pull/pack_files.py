"""The files of a memory pack: one knowledge base on the device, as of one revision.

    manifest.json   ids of model, codec, format and embedder; revision, count; size and SHA-256 of every other file
    records.bin     RECORD of every memory, in ascending order of their ids: where its bytes lie, and their CRC-32C
    vectors.bin     float32 [memories, dimension], unit length
    payloads.bin    payloads one after the other
    texts.bin       key, title and text of every memory one after the other, UTF-8

Little-endian. While a pack is fetched its files only grow, and what the last whole record names is what is there:
an interrupted or damaged collection is cut back to its last whole and right memory, and goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from memory_model.bundle import MANIFEST, FileEntry
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, InvalidInput, MissingFile

PACK_FORMAT_VERSION = 1
RECORDS, VECTORS, PAYLOADS, TEXTS = FILES = ("records.bin", "vectors.bin", "payloads.bin", "texts.bin")
RECORD = np.dtype(
    [("memory_id", "<u8"), ("payload_offset", "<u8"), ("text_offset", "<u8"), ("payload_bytes", "<u4"),
     ("text_bytes", "<u4"), ("key_bytes", "<u2"), ("title_bytes", "<u2"), ("chunk_number", "<u4"),
     ("payload_crc32c", "<u4"), ("text_crc32c", "<u4"), ("vector_crc32c", "<u4"), ("record_crc32c", "<u4")]
)  # fmt: skip
"""text_bytes: of key, title and text together. record_crc32c: of the record's bytes before it."""


@dataclass(frozen=True)
class PackHead:
    """Which knowledge base, at which revision, written by what; memories, id_digest: all that it has there."""

    knowledge_base: str
    revision: int
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int
    rerank_candidates: int
    memories: int
    id_digest: int


@dataclass(frozen=True)
class PackManifest:
    """What a pack says about itself. memories: in the pack; fewer than head.memories if it was limited."""

    head: PackHead
    memories: int
    pulled_at: str
    files: Mapping[str, FileEntry]
    kind: str = "memory-pack"
    format_version: int = PACK_FORMAT_VERSION

    def to_json(self) -> str:
        """The content of `manifest.json`."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, folder: Path) -> PackManifest:
        """Of the pack at `folder`; raises MissingFile, CorruptFile."""
        path = folder / MANIFEST
        if not path.is_file():
            raise MissingFile(
                f"no memory pack at {folder}: fetch one with `edge-client pull --kb NAME --out {folder}`"
            )
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if data.get("kind") != "memory-pack":
                raise CorruptFile(f"{folder} holds something else than a memory pack")
            if data.get("format_version") != PACK_FORMAT_VERSION:
                raise CorruptFile(
                    f"the pack has format version {data.get('format_version')}, this program reads"
                    f" {PACK_FORMAT_VERSION}: pull it again"
                )
            files = {name: FileEntry(**entry) for name, entry in data.pop("files").items()}
            manifest = cls(head=PackHead(**data.pop("head")), files=files, **data)
            if set(files) != set(FILES):
                raise CorruptFile(f"the pack's {MANIFEST} does not list {', '.join(FILES)}")
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise CorruptFile(f"{path} is not a pack's manifest: {error}") from error
        return manifest


def check_pack_place(folder: Path) -> None:
    """Raise InvalidInput when a pack may not be put at `folder`: it exists and holds something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        PackManifest.read(folder)
    except (CorruptFile, MissingFile) as error:
        raise InvalidInput(f"{folder} exists and is not a memory pack: choose another place") from error


@dataclass(frozen=True)
class PackedMemory:
    """One memory on its way into a pack. vector: float32 bytes of unit length; text: key, title and text."""

    memory_id: int
    key: bytes
    title: bytes
    text: bytes
    chunk_number: int
    vector: bytes
    payload: bytes
    payload_crc32c: int


class PackWriter:
    """Appends memories to the files of a folder, after those that are there already. A context manager."""

    def __init__(self, folder: Path, dimension: int) -> None:
        """Cuts off what is not whole, or whose checksums are wrong."""
        self._folder, self._dimension = folder, dimension
        records = whole_records(folder, dimension)
        self.count = len(records)
        self.last_id = int(records["memory_id"][-1]) if len(records) else None
        self.id_digest = int(np.bitwise_xor.reduce(records["memory_id"])) if len(records) else 0
        self.bytes = _sizes(records, dimension)
        self._files: dict[str, BinaryIO] = {}
        for name in FILES:
            file = (folder / name).open("ab")
            file.truncate(self.bytes[name])
            self._files[name] = file

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(self.bytes.values())

    def append(self, memories: Iterable[PackedMemory]) -> None:
        """Write a page; its records last, so that a record never names what is not there."""
        records = []
        for memory in memories:
            text = memory.key + memory.title + memory.text
            records.append(
                (memory.memory_id, self.bytes[PAYLOADS], self.bytes[TEXTS], len(memory.payload), len(text),
                 len(memory.key), len(memory.title), memory.chunk_number, memory.payload_crc32c,
                 google_crc32c.value(text), google_crc32c.value(memory.vector), 0)
            )  # fmt: skip
            for name, data in ((PAYLOADS, memory.payload), (TEXTS, text), (VECTORS, memory.vector)):
                self._files[name].write(data)
                self.bytes[name] += len(data)
            self.id_digest ^= memory.memory_id
            self.last_id = memory.memory_id
        for name in (PAYLOADS, TEXTS, VECTORS):
            self._files[name].flush()
        page = np.array(records, RECORD)
        page["record_crc32c"] = [_checksum(record.tobytes()) for record in page]
        self._files[RECORDS].write(page.tobytes())
        self._files[RECORDS].flush()
        self.bytes[RECORDS] += len(records) * RECORD.itemsize
        self.count += len(records)

    def finish(self, head: PackHead, pulled_at: str) -> PackManifest:
        """Close the files and describe them by a manifest."""
        self.close()
        files = {name: FileEntry(file_sha256(self._folder / name), self.bytes[name]) for name in FILES}
        manifest = PackManifest(head, self.count, pulled_at, files)
        (self._folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        return manifest

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def whole_records(folder: Path, dimension: int) -> np.ndarray:
    """The records of a folder up to the first whose bytes are not all there, or not right."""
    raw = (folder / RECORDS).read_bytes() if (folder / RECORDS).is_file() else b""
    records = np.frombuffer(raw[: len(raw) // RECORD.itemsize * RECORD.itemsize], RECORD)
    if not len(records) or not all((folder / name).is_file() for name in FILES):
        return records[:0]
    vectors, payloads, texts = (mapped(folder / name) for name in (VECTORS, PAYLOADS, TEXTS))
    step = 4 * dimension
    payload_end = text_end = 0
    for number, record in enumerate(records.tolist()):
        _, payload_at, text_at, payload_bytes, text_bytes, _, _, _, *checksums, own = record
        parts = (
            payloads[payload_at : payload_at + payload_bytes],
            texts[text_at : text_at + text_bytes],
            vectors[number * step : (number + 1) * step],
        )
        in_order = (payload_at, text_at) == (payload_end, text_end)
        right = own == _checksum(raw[number * RECORD.itemsize : (number + 1) * RECORD.itemsize])
        if not (right and in_order) or [google_crc32c.value(bytes(part)) for part in parts] != checksums:
            return records[:number]
        payload_end, text_end = payload_at + payload_bytes, text_at + text_bytes
    return records


def _checksum(record: bytes) -> int:
    return int(google_crc32c.value(record[:-4]))


def mapped(path: Path) -> np.ndarray:
    """A file's bytes, uint8 [bytes], read when they are looked at."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def _sizes(records: np.ndarray, dimension: int) -> dict[str, int]:
    if not len(records):
        return dict.fromkeys(FILES, 0)
    last = records[-1]
    return {
        RECORDS: len(records) * RECORD.itemsize,
        VECTORS: len(records) * 4 * dimension,
        PAYLOADS: int(last["payload_offset"]) + int(last["payload_bytes"]),
        TEXTS: int(last["text_offset"]) + int(last["text_bytes"]),
    }
