"""Vectors to product codes in numpy: on the device as in the cloud, so that both write the same bytes."""

from __future__ import annotations

import numpy as np

from memory_model.codec.tables import COARSE_SUBSPACES, ProductTables

DISTANCES = 1 << 18
"""Computed at a time: what a processor's cache holds."""


def encoding_map(tables: ProductTables) -> np.ndarray:
    """What vectors are projected with, float32 [b, d, d_out]: that of the tables, or the basis' inverse."""
    if tables.into is not None:
        return tables.into
    inverses = [np.linalg.pinv(basis.astype(np.float64)) for basis in tables.basis]
    return np.stack(inverses).astype(np.float32)


def product_codes(tables: ProductTables, into: np.ndarray, vectors: np.ndarray, block: int) -> np.ndarray:
    """Codes uint8 [n, code_bytes] of one block's float32 vectors [n, d]; into: see `encoding_map`."""
    x = (vectors.astype(np.float32) - tables.mean[block]) @ into[block]
    parts = []
    if tables.coarse is not None:
        coarse = _nearest(x.reshape(len(x), COARSE_SUBSPACES, -1), tables.coarse[block])
        parts.append(pack_bits(coarse, tables.coarse_bits))
        found = [words[index] for words, index in zip(tables.coarse[block], coarse.T, strict=True)]
        x = x - np.concatenate(found, axis=1)
    fine = _nearest(x.reshape(len(x), tables.codewords.shape[1], -1), tables.codewords[block])
    return np.concatenate([*parts, pack_bits(fine, tables.bits)], axis=1)


def _nearest(x: np.ndarray, codewords: np.ndarray) -> np.ndarray:
    """Number of the nearest codeword [parts, words, width] of each part of x [n, parts, width], int64 [n, parts]."""
    found = np.empty(x.shape[:2], np.int64)
    step = max(1, DISTANCES // codewords.shape[1])
    for part, words in enumerate(codewords):
        lengths, opposite = np.square(words).sum(1), np.ascontiguousarray(-2 * words.T)
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            # The squared distance, less the vector's own length, which is the same for all codewords.
            distances = x[rows, part] @ opposite
            distances += lengths
            found[rows, part] = distances.argmin(axis=1)
    return found


def pack_bits(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers int64 [n, count] of `bits` bits each as little-endian bit strings uint8 [n, bytes]."""
    if bits == 8:
        return numbers.astype(np.uint8)
    spread = (numbers[:, :, None] >> np.arange(bits)) & 1
    return np.packbits(spread.astype(np.uint8).reshape(len(numbers), -1), axis=1, bitorder="little")
