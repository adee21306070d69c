"""A memory pack, searched on the device: the same answers as the service's, by comparing with every vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import google_crc32c
import numpy as np

from edge_client.pull.pack_files import (
    PAYLOADS,
    RECORD,
    RECORDS,
    TEXTS,
    VECTORS,
    PackManifest,
    mapped,
)
from edge_client.settings import EdgeSettings
from edge_client.wire.retrieval import Answer, Hit
from memory_model.bundle import Bundle
from memory_model.codec.payload import Identity
from memory_model.digest import file_sha256
from memory_model.errors import (
    CodecMismatch,
    CorruptFile,
    EmbedderMismatch,
    FormatMismatch,
    IdentityMismatch,
    InvalidInput,
    ModelMismatch,
)
from memory_model.words import LARGEST_DROP, order, query_words, text_words

_REMEDY = "pull the pack again from a service that runs this bundle's model"
_COUNTED_TEXTS = 4096


class MemoryPack:
    """An opened pack. Thread-safe: its files are mapped and only read.

    Opening compares sizes, and the checksums of what every search reads (records, vectors); the checksums of
    texts and payloads are compared when they are read. minimum_score: of searches that name none.
    """

    def __init__(self, folder: Path, manifest: PackManifest, minimum_score: float | None = None) -> None:
        self.folder = folder
        self.minimum_score = minimum_score
        self.manifest = manifest
        count, dimension = manifest.memories, manifest.head.dimension
        self._records = mapped(folder / RECORDS).view(RECORD)
        self._vectors = mapped(folder / VECTORS).view("<f4").reshape(count, dimension)
        self._payloads, self._texts = mapped(folder / PAYLOADS), mapped(folder / TEXTS)
        self._words = lru_cache(_COUNTED_TEXTS)(self._words_of)

    @classmethod
    def open(
        cls, folder: str | Path, identity: Identity, embedder_id: str, *, minimum_score: float | None = None
    ) -> MemoryPack:  # fmt: skip
        """Open the pack at `folder` for what this device can read.

        Raises MissingFile, CorruptFile, and the mismatch of the first id in which the pack's writer differs.
        """
        folder = Path(folder)
        manifest = PackManifest.read(folder)
        head = manifest.head
        mismatches: tuple[tuple[type[IdentityMismatch], str, str], ...] = (
            (ModelMismatch, head.model_id, identity.model_id),
            (FormatMismatch, head.memory_format_id, identity.memory_format_id),
            (CodecMismatch, head.codec_id, identity.codec_id),
            (EmbedderMismatch, head.embedder_id, embedder_id),
        )
        for mismatch, theirs, ours in mismatches:
            if theirs != ours:
                raise mismatch(theirs, ours, _REMEDY)
        for name, entry in manifest.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != entry.bytes:
                raise CorruptFile(f"{name} of the pack at {folder} is missing or cut: pull it again")
            if name in (RECORDS, VECTORS) and file_sha256(path) != entry.sha256:
                raise CorruptFile(
                    f"{name} of the pack at {folder} was changed (SHA-256 differs): pull it again"
                )
        sizes = (manifest.files[RECORDS].bytes, manifest.files[VECTORS].bytes)
        if sizes != (manifest.memories * RECORD.itemsize, manifest.memories * 4 * head.dimension):
            raise CorruptFile(
                f"the pack at {folder} does not hold {manifest.memories} memories: pull it again"
            )
        return cls(folder, manifest, minimum_score)

    def __len__(self) -> int:
        """Memories in the pack."""
        return self.manifest.memories

    def retrieve(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = (),
        maximum_drop: float | None = LARGEST_DROP, minimum_score: float | None = None, return_text: bool = True,
    ) -> Answer:  # fmt: skip
        """The k nearest memories of each vector (float32 [n, dim]), as MemoryClient.retrieve; no network.

        words: hashes of each query's words: the nearest by vector are then ordered by vector and words, and those
        that score lower than the best by more than maximum_drop are left out. Raises InvalidInput, CorruptFile.
        """
        dimension = self.manifest.head.dimension
        if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != dimension:
            raise InvalidInput(f"query vectors must be [n, {dimension}] with n > 0, not {vectors.shape}")
        if words and len(words) != len(vectors):
            raise InvalidInput(f"words of {len(words)} queries for {len(vectors)} query vectors")
        if k < 1:
            raise InvalidInput(f"k must be positive, not {k}")
        minimum_score = self.minimum_score if minimum_score is None else minimum_score
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(norms) & (norms > 0)).all():
            raise InvalidInput("query vectors must be finite and not zero")
        scores = (vectors / norms).astype(np.float32) @ self._vectors.T
        sent: set[int] = set()
        hits = []
        for number, of_query in enumerate(scores):
            said = words[number] if words else ()
            rows = self._nearest(of_query, k, said, maximum_drop, minimum_score)
            hits.append(tuple(self._hit(row, float(of_query[row]), return_text, sent) for row in rows))
        return Answer(tuple(hits), 0.0)

    def _nearest(
        self, scores: np.ndarray, k: int, words: Sequence[int], drop: float | None, minimum: float | None
    ) -> list[int]:
        """Rows of the k best by cosine, or by cosine and words of the nearest by cosine."""
        wanted = min(max(k, self.manifest.head.rerank_candidates) if words else k, len(scores))
        rows = np.argpartition(-scores, wanted - 1)[:wanted]
        rows = rows[np.lexsort((rows, -scores[rows]))]
        if minimum is not None:
            rows = rows[scores[rows] >= minimum]
        found: list[int] = rows.tolist()
        if not words or not found:
            return found
        counted = [self._words(row) for row in found]
        best = order(
            words, scores[rows].tolist(), [text for text, _ in counted], [title for _, title in counted], drop
        )
        return [found[place] for place in best[:k]]

    def _words_of(self, row: int) -> tuple[np.ndarray, list[int]]:
        _, title, text = self._strings(row)
        return text_words(text), query_words(title)

    def _strings(self, row: int) -> tuple[str, str, str]:
        """Key, title and text of a row; raises CorruptFile."""
        record = self._records[row]
        begin = int(record["text_offset"])
        raw = self._texts[begin : begin + int(record["text_bytes"])].tobytes()
        if google_crc32c.value(raw) != int(record["text_crc32c"]):
            raise CorruptFile(
                f"the text of memory {int(record['memory_id']):016x} in the pack at {self.folder} is damaged:"
                " pull it again"
            )
        title_at = int(record["key_bytes"])
        text_at = title_at + int(record["title_bytes"])
        return raw[:title_at].decode(), raw[title_at:text_at].decode(), raw[text_at:].decode()

    def _hit(self, row: int, score: float, return_text: bool, sent: set[int]) -> Hit:
        """The payload goes with the first hit of a memory, as in the service's answers."""
        record = self._records[row]
        key, title, text = self._strings(row)
        memory_id = int(record["memory_id"])
        held, payload = memory_id in sent, b""
        if not held:
            begin = int(record["payload_offset"])
            payload = self._payloads[begin : begin + int(record["payload_bytes"])].tobytes()
            sent.add(memory_id)
        return Hit(
            memory_id=memory_id, score=score, document_key=key, title=title, chunk_number=int(record["chunk_number"]),
            text=text if return_text else None, payload=payload, crc32c=int(record["payload_crc32c"]), held=held,
        )  # fmt: skip


def open_pack(settings: EdgeSettings, bundle: Bundle) -> MemoryPack | None:
    """The pack that the settings name, opened for a bundle, or None where they name none.

    Raises MissingFile, CorruptFile, an IdentityMismatch, and InvalidInput for one of another knowledge base.
    """
    if settings.pack is None:
        return None
    pack = MemoryPack.open(
        settings.pack, bundle.identity, bundle.manifest.embedder_id, minimum_score=settings.minimum_score
    )
    of = pack.manifest.head.knowledge_base
    if of != settings.knowledge_base:
        raise InvalidInput(
            f"the pack at {settings.pack} is of knowledge base {of!r}, the memories of {settings.knowledge_base!r} are"
            f" requested: name the same with --knowledge-base {of}, or pull the other pack"
        )
    return pack
