"""FAISS indexes that decode the same codes as our codecs: the peers of decompression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np

from memory_model.codec.tables import ProductTables

PAPER_FACTORY = "OPQ20_80,Residual2x14,PQ8x10"
"""The paper's codec (appendix B) in FAISS's words: 14 bytes for a vector of 80."""
CLUSTERS, TRAINING_VECTORS = 512, 41_000


def clustered_vectors(count: int, width: int, seed: int = 0) -> np.ndarray:
    """float32 [count, width] around random centres: decoding takes the same time whatever the vectors say."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((CLUSTERS, width), np.float32)
    noise = 0.5 * rng.standard_normal((count, width), np.float32)
    return np.asarray(centres[rng.integers(0, CLUSTERS, count)] + noise)


def paper_index(path: Path) -> Any:
    """The paper's codec, trained on clustered vectors in few iterations; read from `path` if it is there."""
    if not path.is_file():
        index: Any = faiss.index_factory(80, PAPER_FACTORY)
        rotation: Any = faiss.downcast_VectorTransform(index.chain.at(0))
        rotation.niter, rotation.niter_pq, rotation.niter_pq_0, rotation.max_train_points = 2, 2, 4, 10240
        layers: Any = faiss.downcast_index(index.index)
        coarse: Any = faiss.downcast_index(layers.q1.quantizer)
        coarse.pq.cp.niter, coarse.pq.cp.min_points_per_centroid = 2, 1
        layers.pq.cp.niter = 5
        index.train(clustered_vectors(TRAINING_VECTORS, 80, seed=1))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        faiss.write_index(index, str(partial))
        partial.replace(path)
    return faiss.read_index(str(path))


def index_of_tables(tables: ProductTables) -> Any:
    """A FAISS index with one block's tables, without its mean: product codewords, then the transposed basis.

    FAISS inverts a linear map by its transpose when it is told that the map is orthonormal, which is what our codec
    does with any basis; so the index decodes to our vectors less the mean, by the same arithmetic.
    """
    basis, codewords = tables.basis[0], tables.codewords[0]
    width_out, width = basis.shape
    parts, words, _ = codewords.shape
    quantizer = faiss.IndexPQ(width_out, parts, int(words).bit_length() - 1)
    faiss.copy_array_to_vector(np.ascontiguousarray(codewords, np.float32).ravel(), quantizer.pq.centroids)
    quantizer.is_trained = True
    linear = faiss.LinearTransform(width, width_out, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(basis, np.float32).ravel(), linear.A)
    linear.is_trained = linear.is_orthonormal = True
    index = faiss.IndexPreTransform(linear, quantizer)
    index.is_trained = True
    return index
