"""Encode with FAISS, and the codecs that FAISS itself trains (paper appendix B), one set of tables for all vectors.

Decoding needs none of this (`memory_model.codec.codec`); `memory_model.codec.fit` fits tables where errors count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np

from memory_model.codec.codec import MemoryCodec, ProductCodec
from memory_model.codec.tables import COARSE_SUBSPACES, ProductTables
from memory_model.errors import InvalidInput

faiss: Any = _faiss  # its annotations describe its C++ side


class FaissCodec(ProductCodec):
    """A product codec that also encodes."""

    def __init__(self, tables: ProductTables) -> None:
        super().__init__(tables)
        into = tables.into
        if into is None:
            into = np.stack([np.linalg.pinv(b.astype(np.float64)) for b in tables.basis]).astype(np.float32)
        self._into = into
        width = tables.codewords.shape[3]
        self._width = _compared_fast(width)
        wider = np.pad(tables.codewords, ((0, 0), (0, 0), (0, 0), (0, self._width - width)))
        self._fine = [_quantizer(words) for words in wider]
        self._coarse = None if tables.coarse is None else [_quantizer(words) for words in tables.coarse]

    @classmethod
    def load_encoder(cls, path: str | Path) -> MemoryCodec:
        """Read `codec.npz` as a codec that encodes too (an exact codec always does)."""
        codec = MemoryCodec.load(path)
        return cls(codec.tables) if isinstance(codec, ProductCodec) else codec

    def encode(self, vectors: np.ndarray, block: int) -> np.ndarray:
        """Codes uint8 [n, code_bytes] of one block's float32 vectors [n, together * head_dim]."""
        width = self.tables.mean.shape[1]
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise InvalidInput(f"vectors have shape {vectors.shape}, expected [n, {width}]")
        g = 0 if self.groups == 1 else block
        x = np.ascontiguousarray((vectors.astype(np.float32) - self.tables.mean[g]) @ self._into[g])
        if self._coarse is None:
            return self._fine_codes(x, g)
        # FAISS's two-part coarse quantizer is a product quantizer whose code is written in front.
        coarse = np.asarray(self._coarse[g].compute_codes(x))
        residual = x - np.asarray(self._coarse[g].decode(coarse))
        return np.concatenate((coarse, self._fine_codes(residual, g)), axis=1)

    def _fine_codes(self, x: np.ndarray, g: int) -> np.ndarray:
        _, parts, _, width = self.tables.codewords.shape
        padded = np.zeros((len(x), parts, self._width), np.float32)
        padded[:, :, :width] = x.reshape(len(x), parts, width)
        return np.asarray(self._fine[g].compute_codes(padded.reshape(len(x), parts * self._width)))


def _compared_fast(width: int) -> int:
    """The next width up to 8 for which FAISS compares vectors several at a time: six times as fast at 5.

    What is added is zero in vectors and codewords, so distances are the same.
    """
    return next((fast for fast in (1, 2, 4, 8) if width <= fast), width)


def _quantizer(codewords: np.ndarray) -> Any:
    parts, words, width = codewords.shape
    quantizer = faiss.ProductQuantizer(parts * width, parts, int(words).bit_length() - 1)
    faiss.copy_array_to_vector(np.ascontiguousarray(codewords, np.float32).ravel(), quantizer.centroids)
    return quantizer


def _codewords(quantizer: Any) -> np.ndarray:
    flat = faiss.vector_to_array(quantizer.centroids)
    return np.asarray(flat.reshape(quantizer.M, quantizer.ksub, quantizer.dsub))


def fit_factory(vectors: np.ndarray, factory: str) -> FaissCodec:
    """One table for all groups from a FAISS factory string, such as `OPQ20_80,Residual2x14,PQ8x10`.

    vectors: float32 [n, d]. Raises InvalidInput as `check_factory` does.
    """
    check_factory(factory, vectors.shape[1], len(vectors))
    index = faiss.index_factory(vectors.shape[1], factory)
    index.train(np.ascontiguousarray(vectors, np.float32))
    return FaissCodec(tables_of_index(index))


def check_factory(factory: str, dimension: int, vectors: int) -> None:
    """Raise InvalidInput for a string of another dimension or form, or one that needs more vectors to be fitted."""
    try:
        index = faiss.index_factory(dimension, factory)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2]
        raise InvalidInput(
            f"FAISS has no index {factory!r} for vectors of {dimension} numbers: {reason}"
        ) from error
    _, first, last = _stages(index)
    needed = max(last.pq.ksub, first.pq.ksub if first is not None else 0)
    if vectors < needed:
        raise InvalidInput(
            f"{factory} needs {needed:,} vectors to be fitted, there are {vectors:,}: write more references"
        )


def _stages(index: Any) -> tuple[Any, Any, Any]:
    """(linear transform or None, two-part residual quantizer or None, product quantizer index) of an index."""
    index, transform, first = faiss.downcast_index(index), None, None
    if isinstance(index, faiss.IndexPreTransform):
        if index.chain.size() != 1:
            raise InvalidInput("a codec has at most one linear transform before its quantizer")
        transform = faiss.downcast_VectorTransform(index.chain.at(0))
        index = faiss.downcast_index(index.index)
    if isinstance(index, faiss.Index2Layer):
        first = faiss.downcast_index(index.q1.quantizer)
        if not isinstance(first, faiss.MultiIndexQuantizer) or first.pq.M != COARSE_SUBSPACES:
            raise InvalidInput("the residual stage must be a two-part one, such as Residual2x14")
    elif not isinstance(index, faiss.IndexPQ):
        raise InvalidInput(
            f"a codec cannot be made of {type(index).__name__}: give OPQ…,PQ… or OPQ…,Residual2x14,PQ…"
        )
    return transform, first, index


def tables_of_index(index: Any) -> ProductTables:
    """The tables of a trained FAISS index, whose own codes then decode here to the same vectors."""
    d = index.d
    transform, first, last = _stages(index)
    basis = np.eye(d, dtype=np.float32)
    if transform is not None:
        basis = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in).astype(np.float32)
    coarse = None if first is None else _codewords(first.pq)[None]
    return ProductTables(np.zeros((1, d), np.float32), basis[None], _codewords(last.pq)[None], coarse)


def unexplained_variance(codec: MemoryCodec, vectors: np.ndarray, block: int) -> np.ndarray:
    """Share of the variance of a block's vectors [n, together * d] that the codec loses: [together], by group."""
    error = vectors - codec.decode(codec.encode(vectors, block), block)
    centred = vectors - vectors.mean(0)
    lost, whole = ((x**2).sum(0).reshape(codec.together, -1).sum(1) for x in (error, centred))
    return np.asarray(lost / whole)
