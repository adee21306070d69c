"""The paper's codec in shape and size, with random tables: what it decodes means nothing, what it costs is real."""

from __future__ import annotations

import numpy as np

from memory_model.codec.codec import ProductCodec
from memory_model.codec.tables import ProductTables
from memory_model.errors import InvalidInput


def paper_codec(head_dim: int, seed: int = 0) -> ProductCodec:
    """`OPQ{d/4}_{d},Residual2x14,PQ8x10` with random tables: a rotation, 2 x 2^14 and 8 x 2^10 codewords."""
    if head_dim % 8:
        raise InvalidInput(f"the paper's codec cuts a vector into 8 parts, {head_dim} numbers do not divide")
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((head_dim, head_dim)))[0].astype(np.float32)
    coarse = rng.standard_normal((2, 1 << 14, head_dim // 2), np.float32)
    words = 0.3 * rng.standard_normal((8, 1 << 10, head_dim // 8), np.float32)
    # float16 numbers, so that the file is half as large and decodes to the same
    coarse, words = (a.astype(np.float16).astype(np.float32) for a in (coarse, words))
    return ProductCodec(ProductTables(np.zeros(head_dim, np.float32), basis, words, coarse))
