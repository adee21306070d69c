"""What every store and every peer is filled with: clustered vectors with exact neighbours, payloads, texts.

Vectors lie near a plane of few dimensions and in clusters there, as those of texts do; queries lie next to
references. Payloads are of the paper's size and incompressible; each begins with its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

PAYLOAD_BYTES = 39_424
K = 5
SHARES = (10, 100, 1000)
_LATENT = 48
_CLUSTER_SPREAD = 0.5
_QUERY_SPREAD = 0.25
_OFF_PLANE = 0.02
_WORDS = 90
_VOCABULARY = 5000
_POOL_BYTES = 8 << 20
_BLOCK = 16_384


@dataclass(frozen=True)
class Collection:
    """`references` vectors of length `dimension`, and `queries` questions about them; the same for the same seed."""

    references: int
    dimension: int = 1024
    queries: int = 1000
    seed: int = 0
    payload_bytes: int = PAYLOAD_BYTES

    @cached_property
    def _space(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Plane [latent, dimension], cluster centres [clusters, latent], cluster of each reference [references]."""
        rng = np.random.default_rng(self.seed)
        plane = rng.standard_normal((_LATENT, self.dimension), np.float32) / np.sqrt(np.float32(_LATENT))
        clusters = max(1, round(self.references**0.5))
        centres = rng.standard_normal((clusters, _LATENT), np.float32)
        return plane, centres, rng.integers(0, clusters, self.references)

    @cached_property
    def _blocks(self) -> list[tuple[int, int]]:
        return [(n, min(n + _BLOCK, self.references)) for n in range(0, self.references, _BLOCK)]

    def _latent(self, block: int) -> np.ndarray:
        start, stop = self._blocks[block]
        _, centres, of = self._space
        noise = np.random.default_rng([self.seed, 1, block]).standard_normal((stop - start, _LATENT), np.float32)
        return centres[of[start:stop]] + _CLUSTER_SPREAD * noise

    def _embedded(self, latent: np.ndarray, *seed: int) -> np.ndarray:
        off = np.random.default_rng([self.seed, *seed]).standard_normal((len(latent), self.dimension), np.float32)
        vectors = latent @ self._space[0] + _OFF_PLANE * off
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def vector_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first reference, unit vectors float32 [n, dimension]), block after block."""
        for block, (start, _) in enumerate(self._blocks):
            yield start, self._embedded(self._latent(block), 2, block)

    def batches(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """The same in batches of at most `size`."""
        for first, vectors in self.vector_blocks():
            for start in range(0, len(vectors), size):
                yield first + start, vectors[start : start + size]

    @cached_property
    def query_vectors(self) -> np.ndarray:
        """Unit vectors float32 [queries, dimension]."""
        rng = np.random.default_rng([self.seed, 3])
        near = rng.integers(0, self.references, self.queries)
        latent = np.empty((self.queries, _LATENT), np.float32)
        for block, (start, stop) in enumerate(self._blocks):
            here = (near >= start) & (near < stop)
            if here.any():
                latent[here] = self._latent(block)[near[here] - start]
        latent += _QUERY_SPREAD * rng.standard_normal(latent.shape, np.float32)
        return self._embedded(latent, 4)

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The exact K nearest references of every query by cosine, int64 [queries, K]; matrix products by blocks."""
        scores = np.full((self.queries, 0), 0, np.float32)
        numbers = np.zeros((self.queries, 0), np.int64)
        for start, vectors in self.vector_blocks():
            block = self.query_vectors @ vectors.T
            best = np.argpartition(-block, min(K, block.shape[1] - 1), axis=1)[:, :K]
            scores = np.hstack([scores, np.take_along_axis(block, best, 1)])
            numbers = np.hstack([numbers, best + start])
            keep = np.argsort(-scores, axis=1, kind="stable")[:, :K]
            scores, numbers = np.take_along_axis(scores, keep, 1), np.take_along_axis(numbers, keep, 1)
        return numbers

    @cached_property
    def _pool(self) -> bytes:
        return np.random.default_rng([self.seed, 5]).bytes(_POOL_BYTES)

    def payload(self, reference: int) -> bytes:
        """`payload_bytes` bytes that no other reference has."""
        start = reference * 977 % (_POOL_BYTES - self.payload_bytes)
        return reference.to_bytes(8, "little") + self._pool[start : start + self.payload_bytes - 8]

    def text(self, reference: int) -> str:
        """As many words as a reference has; rare ones rarely."""
        rng = np.random.default_rng([self.seed, 6, reference])
        ranks = np.floor(_VOCABULARY ** rng.random(_WORDS)).astype(int)
        return " ".join(f"w{rank}" for rank in ranks)

    def question(self, query: int) -> str:
        """The words of a query: half a sentence about some reference."""
        return " ".join(self.text(query).split()[:40])

    @staticmethod
    def metadata(reference: int) -> dict[str, str]:
        """For filters that one reference in SHARES passes."""
        return {f"of_{share}": str(reference % share) for share in SHARES}


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    """Share of the exact neighbours that were found; both [queries, K], -1 where nothing was."""
    return float(np.mean([len(set(f) & set(e)) / len(e) for f, e in zip(found.tolist(), exact.tolist(), strict=True)]))
