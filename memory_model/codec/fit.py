"""Fit a product codec's tables to vectors where an error counts.

An error e in a vector (of a memory head's keys or values) counts e^T metric e: keys have the metric of the queries that
will meet them, values that of the output projection. The vectors of a token are coded as one long vector, so those
whose errors count more get more of the bits (decision 0009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist

import faiss
import numpy as np

from memory3.codec.codec import ProductCodec, in_bytes
from memory3.codec.native.library import installed
from memory3.codec.tables import ProductTables
from memory3.errors import InvalidInput

_PROJECTED_PARTS = 8
"""Subspaces whose coordinates are computed at once: each product reads all vectors."""
_FLOOR = 0.02  # every direction counts for this share of the metric's mean: none is free


def fit_tables(
    vectors: np.ndarray,
    parts: int,
    bits: int,
    metrics: Sequence[np.ndarray] | None = None,
    *,
    widest: int = 0,
    together: int = 1,
    iterations: int = 12,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> ProductCodec:
    """A codec whose code has `parts` codes of `bits` bits, each of at most `widest` axes (0: as many as are worth it).

    vectors: float32 [n, together * d], the vectors of a code side by side; overwrite: they may be changed, not copied.
    metrics: symmetric positive [d, d] of each of them, in one unit; without, all directions count the same. progress:
    called with the number of subspaces fitted since its last call. Tables are rounded as files hold them: the basis to
    bytes, the others to half precision.
    """
    if len(vectors) < 1 << bits:
        raise InvalidInput(f"{len(vectors)} vectors are too few for {1 << bits} codewords: use more references")
    mean = _half(vectors.mean(0, dtype=np.float64))
    vectors = np.subtract(vectors, mean, out=vectors if overwrite else None)
    root = square_root(metrics or [np.eye(vectors.shape[1] // together)] * together)
    moment = np.asarray(vectors.T @ vectors, np.float64) / len(vectors)
    axes, owned = dealt_axes(apply(root, apply(root, moment).T), parts, bits, widest)
    width = max(map(len, owned))
    # Subspaces are padded to one width: these are the rows of the basis that hold something.
    rows = np.concatenate([part * width + np.arange(len(own)) for part, own in enumerate(owned)])
    inverse = [np.linalg.inv(block) for block in root]
    basis = np.zeros((parts * width, vectors.shape[1]), np.float32)
    _, _, basis[rows] = in_bytes(apply(inverse, axes[:, np.concatenate(owned)]).T, together)
    codewords = np.zeros((parts, 1 << bits, width), np.float32)
    tables = ProductTables(
        mean, basis, codewords, together=together, metric=_half(np.stack([own @ own for own in root]))
    )
    into = tables.projection()
    for first in range(0, parts, _PROJECTED_PARTS):
        projected = vectors @ into[:, first * width : (first + _PROJECTED_PARTS) * width]
        for part in range(first, min(first + _PROJECTED_PARTS, parts)):
            start, used = (part - first) * width, len(owned[part])
            if used:
                points = projected[:, start : start + used]
                codewords[part, :, :used] = _half(_codewords(points, bits, iterations, seed))
            progress(1)
    return ProductCodec(tables, installed())


def apply(blocks: Sequence[np.ndarray], matrix: np.ndarray) -> np.ndarray:
    """The block-diagonal of square blocks times a matrix, float64."""
    wide = len(blocks[0])
    rows = [block @ matrix[n * wide : (n + 1) * wide] for n, block in enumerate(blocks)]
    return np.concatenate(rows)


def _codewords(points: np.ndarray, bits: int, iterations: int, seed: int) -> np.ndarray:
    """k-means of float32 points [n, k]: codewords [2^bits, k]."""
    words, k = 1 << bits, points.shape[1]
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}
    kmeans = faiss.Kmeans(k, words, niter=iterations, seed=seed + 1, **limits)
    start = None
    if k == 1:
        # On a line the best codewords are as dense as the cube root of the points' density; for normal
        # points these are the quantiles of a normal distribution sqrt(3) as wide.
        normal = NormalDist(float(points.mean()), float(points.std()) * 3**0.5 + 1e-12)
        start = np.array([[normal.inv_cdf((i + 0.5) / words)] for i in range(words)], np.float32)
    kmeans.train(np.ascontiguousarray(points), init_centroids=start)
    return np.asarray(kmeans.centroids, np.float32)


def square_root(metrics: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Symmetric matrices whose squares are the metrics, safely invertible, together of unit size."""
    d, roots = len(metrics[0]), []
    for metric in metrics:
        values, axes = np.linalg.eigh(metric + _FLOOR * np.trace(metric) / d * np.eye(d))
        roots.append((axes * np.sqrt(values.clip(1e-12 * np.trace(metric)))) @ axes.T)
    size = np.sqrt(sum(np.square(root).sum() for root in roots) / (d * len(roots)))
    return [root / size for root in roots]


def dealt_axes(moment: np.ndarray, parts: int, bits: int, widest: int = 0) -> tuple[np.ndarray, list[list[int]]]:
    """Principal axes of a second moment [d, d] as columns [d, d], and which of them each of `parts` subspaces has.

    A subspace of k axes that spends `bits` loses about D = (product of variances)^(1/k) * 2^(-2 bits / k) on each of
    them (rate-distortion of a Gaussian). Axes are dealt from the strongest on, each to where it adds least to the sum
    of these losses; one that is weaker than D everywhere is left out, as is one for which no subspace of fewer than
    `widest` axes is left.
    """
    variances, axes = np.linalg.eigh(moment)
    logs = np.log(variances.clip(1e-12 * variances.max()))
    sums, counts = np.zeros(parts), np.zeros(parts, int)
    owned: list[list[int]] = [[] for _ in range(parts)]

    def loss(log_sum: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Logarithm of D; a subspace without axes loses nothing."""
        return np.asarray(np.where(count > 0, (log_sum - 2 * bits * np.log(2)) / np.maximum(count, 1), -np.inf))

    for axis in np.argsort(-logs, kind="stable"):
        now = loss(sums, counts)
        grown = (counts + 1) * np.exp(loss(sums + logs[axis], counts + 1))
        open_to = (now < logs[axis]) & ((counts < widest) | (widest == 0))
        added = np.where(open_to, grown - counts * np.exp(now), np.inf)
        best = int(np.argmin(added))
        if not np.isfinite(added[best]):
            break  # no weaker axis earns bits either
        owned[best].append(int(axis))
        sums[best] += logs[axis]
        counts[best] += 1
    return axes, owned


def _half(array: np.ndarray) -> np.ndarray:
    """Rounded to half precision, as float32."""
    return array.astype(np.float16).astype(np.float32)
