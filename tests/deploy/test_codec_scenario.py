from __future__ import annotations

import numpy as np
import pytest

from deploy.bench.scenarios.codec import index_of_tables
from memory_model.codec.codec import ProductCodec
from memory_model.codec.tables import ProductTables


def test_the_peer_decodes_our_codes_to_our_vectors_without_their_mean():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((16, 16)))[0].astype(np.float32)
    codewords = rng.standard_normal((4, 256, 4)).astype(np.float32)
    mean = rng.standard_normal(16).astype(np.float32)
    tables = ProductTables(mean, basis, codewords)
    codes = rng.integers(0, 256, (50, 4), dtype=np.uint8)
    theirs = index_of_tables(tables).sa_decode(codes) + mean
    assert ProductCodec(tables).decode(codes) == pytest.approx(theirs, abs=1e-5)
