"""The codecs that FAISS itself trains (paper appendix B), one set of tables for all vectors.

Encoding and decoding need none of this (`memory3.codec.codec`);
`memory_model.codec.fit` fits tables where errors count.
"""

from __future__ import annotations

from typing import Any

import faiss as _faiss
import numpy as np

from memory3.codec.codec import MemoryCodec, ProductCodec
from memory3.codec.tables import COARSE_SUBSPACES, ProductTables
from memory3.errors import InvalidInput

faiss: Any = _faiss  # its annotations describe its C++ side


def _codewords(quantizer: Any) -> np.ndarray:
    flat = faiss.vector_to_array(quantizer.centroids)
    return np.asarray(flat.reshape(quantizer.M, quantizer.ksub, quantizer.dsub))


def fit_factory(vectors: np.ndarray, factory: str) -> ProductCodec:
    """A codec of single vectors from a FAISS factory string, such as `OPQ20_80,Residual2x14,PQ8x10`.

    vectors: float32 [n, d], as many as `check_factory` requires.
    """
    index = faiss.index_factory(vectors.shape[1], factory)
    if isinstance(last := _stages(index)[2], faiss.IndexPQ):
        last.do_polysemous_training = False  # takes seconds to order centroids for a search that is never made
    index.train(np.ascontiguousarray(vectors, np.float32))
    return ProductCodec(tables_of_index(index))


def check_factory(factory: str, dimension: int, vectors: int) -> None:
    """Raise InvalidInput for a string of another dimension or form, or one that needs more vectors to be fitted."""
    try:
        index = faiss.index_factory(dimension, factory)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2]
        raise InvalidInput(f"FAISS has no index {factory!r} for vectors of {dimension} numbers: {reason}") from error
    transform, first, last = _stages(index)
    if isinstance(transform, faiss.OPQMatrix) and transform.d_out % transform.M:
        raise InvalidInput(f"{factory!r}: {transform.M} parts do not share {transform.d_out} numbers evenly")
    needed = max(last.pq.ksub, first.pq.ksub if first is not None else 0)
    if vectors < needed:
        raise InvalidInput(f"{factory} needs {needed:,} vectors to be fitted, not {vectors:,}: write more references")


def _stages(index: Any) -> tuple[Any, Any, Any]:
    """(linear transform or None, two-part residual quantizer or None, product quantizer index) of an index."""
    index, transform, first = faiss.downcast_index(index), None, None
    if isinstance(index, faiss.IndexPreTransform) and index.chain.size() == 1:
        transform = faiss.downcast_VectorTransform(index.chain.at(0))
        index = faiss.downcast_index(index.index)
        if not isinstance(transform, faiss.OPQMatrix | faiss.RandomRotationMatrix):  # others add, scale or round too
            raise InvalidInput(_wrong(transform))
    if isinstance(index, faiss.Index2Layer):
        first = faiss.downcast_index(index.q1.quantizer)
        two_parts = isinstance(first, faiss.MultiIndexQuantizer) and first.pq.M == COARSE_SUBSPACES
    if not (isinstance(index, faiss.IndexPQ) if first is None else two_parts):
        raise InvalidInput(_wrong(index))
    return transform, first, index


def _wrong(part: Any) -> str:
    return f"a codec cannot be made of {type(part).__name__}: give OPQ…,PQ… or OPQ…,Residual2x14,PQ…"


def tables_of_index(index: Any) -> ProductTables:
    """The tables of a trained FAISS index, whose own codes then decode here to the same vectors."""
    d = index.d
    transform, first, last = _stages(index)
    basis = np.eye(d, dtype=np.float32)
    if transform is not None:
        basis = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in).astype(np.float32)
    coarse = None if first is None else _codewords(first.pq)
    return ProductTables(np.zeros(d, np.float32), basis, _codewords(last.pq), coarse)


_ROWS = 1024
"""Vectors that are encoded at once: the subspaces' coordinates are several times as wide."""


def unexplained_variance(codec: MemoryCodec, vectors: np.ndarray) -> np.ndarray:
    """Share of the variance of vectors [n, together * d] that the codec loses: [together], one for each in a code."""
    mean = vectors.mean(0)
    lost = whole = np.zeros(vectors.shape[1])
    for start in range(0, len(vectors), _ROWS):
        own = vectors[start : start + _ROWS]
        lost = lost + ((own - codec.decode(codec.encode(own))) ** 2).sum(0, dtype=np.float64)
        whole = whole + ((own - mean) ** 2).sum(0, dtype=np.float64)
    lost, whole = (x.reshape(codec.together, -1).sum(1) for x in (lost, whole))
    return np.asarray(lost / whole)
