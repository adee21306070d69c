"""Train codecs and encode with FAISS (paper appendix B); decoding needs none of this (`memory_model.codec`).

Two ways to a codec:

* `fit_factory`: any FAISS composite index of the forms `OPQ…,PQ…` and `OPQ…,Residual2x14,PQ…`, one set of
  tables for all vectors, as the paper has it.
* `fit_groups`: own tables for every group (memory head, key or value), fitted where an error counts: keys
  in the metric of the queries that will meet them, values in the metric of the output projection. In that
  metric the axes are the principal ones, and strong axes share a subspace with fewer others than weak ones,
  which gives each axis the bits that it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from memory_model.codec import MemoryCodec, ProductCodec, ProductTables
from memory_model.errors import InvalidInput

_COARSE_SUBSPACES = 2


class FaissCodec(ProductCodec):
    """A product codec that also encodes."""

    def __init__(self, tables: ProductTables) -> None:
        super().__init__(tables)
        self._into = np.stack([np.linalg.pinv(b.astype(np.float64)) for b in tables.basis]).astype(np.float32)
        self._fine = [_quantizer(words) for words in tables.codewords]
        self._coarse = None if tables.coarse is None else [_quantizer(words) for words in tables.coarse]

    @classmethod
    def load_encoder(cls, path: str | Path) -> MemoryCodec:
        """Read `codec.npz` as a codec that encodes too (an exact codec always does)."""
        codec = MemoryCodec.load(path)
        return cls(codec.tables) if isinstance(codec, ProductCodec) else codec

    def encode(self, vectors: np.ndarray, group: int) -> np.ndarray:
        """Codes uint8 [n, code_bytes] of float32 vectors [n, head_dim] of one group."""
        if vectors.ndim != 2 or vectors.shape[1] != self.head_dim:
            raise InvalidInput(f"vectors have shape {vectors.shape}, expected [n, {self.head_dim}]")
        g = 0 if self.groups == 1 else group
        x = np.ascontiguousarray((vectors.astype(np.float32) - self.tables.mean[g]) @ self._into[g])
        if self._coarse is None:
            return np.asarray(self._fine[g].compute_codes(x))
        # FAISS's two-part coarse quantizer is a product quantizer whose code is written in front.
        coarse = np.asarray(self._coarse[g].compute_codes(x))
        residual = x - np.asarray(self._coarse[g].decode(coarse))
        return np.concatenate((coarse, np.asarray(self._fine[g].compute_codes(residual))), axis=1)


def _quantizer(codewords: np.ndarray) -> Any:  # FAISS's own annotations describe its C++ side
    parts, words, width = codewords.shape
    quantizer = faiss.ProductQuantizer(parts * width, parts, int(words).bit_length() - 1)
    faiss.copy_array_to_vector(np.ascontiguousarray(codewords, np.float32).ravel(), quantizer.centroids)
    return quantizer


def _codewords(quantizer: Any) -> np.ndarray:
    flat = faiss.vector_to_array(quantizer.centroids)
    return np.asarray(flat.reshape(quantizer.M, quantizer.ksub, quantizer.dsub))


def fit_factory(vectors: np.ndarray, factory: str) -> FaissCodec:
    """One table for all groups from a FAISS factory string, such as `OPQ20_80,Residual2x14,PQ8x10`.

    vectors: float32 [n, d]. Raises InvalidInput for an index that has other parts than OPQ, a two-part
    residual stage and PQ.
    """
    index = faiss.index_factory(vectors.shape[1], factory)
    index.train(np.ascontiguousarray(vectors, np.float32))
    return FaissCodec(tables_of_index(index))


def _downcast(index: Any) -> Any:
    """The index as its own class, untyped: the annotations of FAISS describe its C++ side."""
    return faiss.downcast_index(index)


def _is(index: Any, kind: Any) -> bool:
    return isinstance(index, kind)  # without narrowing to those annotations


def tables_of_index(index: Any) -> ProductTables:
    """The tables of a trained FAISS index, whose own codes then decode here to the same vectors."""
    index = _downcast(index)
    d = index.d
    basis = np.eye(d, dtype=np.float32)
    if _is(index, faiss.IndexPreTransform):
        if index.chain.size() != 1:
            raise InvalidInput("a codec has at most one linear transform before its quantizer")
        transform: Any = faiss.downcast_VectorTransform(index.chain.at(0))
        basis = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in).astype(np.float32)
        index = _downcast(index.index)
    coarse = None
    if _is(index, faiss.Index2Layer):
        first = _downcast(index.q1.quantizer)
        if not _is(first, faiss.MultiIndexQuantizer) or first.pq.M != _COARSE_SUBSPACES:
            raise InvalidInput("the residual stage must be a two-part one, such as Residual2x14")
        coarse = _codewords(first.pq)[None]
    elif not _is(index, faiss.IndexPQ):
        raise InvalidInput(
            f"a codec cannot be made of {type(index).__name__}: give OPQ…,PQ… or OPQ…,Residual2x14,PQ…"
        )
    return ProductTables(np.zeros((1, d), np.float32), basis[None], _codewords(index.pq)[None], coarse)


def fit_groups(
    vectors: Sequence[np.ndarray], parts: int, bits: int, metrics: Sequence[np.ndarray] | None = None,
    *, iterations: int = 20, points: int = 65536, seed: int = 0, progress: Callable[[int], None] | None = None,
) -> FaissCodec:  # fmt: skip
    """Own tables for each group: vectors[g] is float32 [n, d], metrics[g] symmetric positive [d, d].

    The error that counts is (x - x')^T metric (x - x'); without metrics all directions count the same.
    """
    d = vectors[0].shape[1]
    rng = np.random.default_rng(seed)
    means, bases, codewords = [], [], []
    for number, group in enumerate(vectors):
        sample = group[rng.permutation(len(group))[:points]].astype(np.float64)
        mean = sample.mean(0)
        root = _square_root(np.eye(d) if metrics is None else metrics[number])
        axes = _dealt_axes((sample - mean) @ root, parts, bits)
        # Rounded to what the file stores, so that what is fitted is what will be decoded.
        basis = (axes.T @ np.linalg.inv(root)).astype(np.float16).astype(np.float32)
        mean32 = mean.astype(np.float16).astype(np.float32)
        into = np.linalg.pinv(basis.astype(np.float64))
        quantizer = faiss.ProductQuantizer(axes.shape[1], parts, bits)
        quantizer.cp.niter, quantizer.cp.seed = iterations, seed + 1
        quantizer.cp.min_points_per_centroid = 1
        quantizer.train(np.ascontiguousarray((sample - mean32) @ into, np.float32))
        means.append(mean32)
        bases.append(basis)
        codewords.append(_codewords(quantizer).astype(np.float16).astype(np.float32))
        if progress is not None:
            progress(number)
    return FaissCodec(ProductTables(np.stack(means), np.stack(bases), np.stack(codewords)))


def _square_root(metric: np.ndarray) -> np.ndarray:
    """A matrix whose square is the metric, made safely invertible and scaled to unit size."""
    d = len(metric)
    metric = metric / np.trace(metric) * d
    values, axes = np.linalg.eigh(metric + 0.02 * np.eye(d))
    return np.asarray((axes * np.sqrt(values.clip(1e-6))) @ axes.T)


def _dealt_axes(centred: np.ndarray, parts: int, bits: int) -> np.ndarray:
    """Principal axes in columns, dealt out to `parts` subspaces of equal width: [d, parts * width].

    A subspace of k axes that spends `bits` loses about k * (product of variances)^(1/k) * 2^(-2 bits / k)
    (rate-distortion of a Gaussian). Axes are dealt from the strongest to the weakest, each to where it adds
    least to that loss; columns that are left over are zero.
    """
    d = centred.shape[1]
    width = min(d, -(-d // parts) + 1)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    logs = np.log(variances.clip(1e-12))
    sums, counts = np.zeros(parts), np.zeros(parts, int)
    dealt = np.zeros((d, parts, width))

    def loss(log_sum: np.ndarray, count: np.ndarray) -> np.ndarray:
        k = np.maximum(count, 1)
        return np.asarray(np.where(count > 0, k * np.exp((log_sum - 2 * bits * np.log(2)) / k), 0.0))

    for axis in np.argsort(-logs):
        added = loss(sums + logs[axis], counts + 1) - loss(sums, counts)
        best = int(np.argmin(np.where(counts < width, added, np.inf)))
        dealt[:, best, counts[best]] = axes[:, axis]
        sums[best] += logs[axis]
        counts[best] += 1
    return dealt.reshape(d, parts * width)


def unexplained_variance(codec: MemoryCodec, vectors: np.ndarray, group: int) -> float:
    """Share of the vectors' variance that the codec loses."""
    restored = codec.decode(codec.encode(vectors, group), group)
    centred = vectors - vectors.mean(0)
    return float(((vectors - restored) ** 2).sum() / (centred**2).sum())
