"""Buffers on a device: parts by address, rows copied in and out by the provider, graphs bound to them in place."""

from __future__ import annotations

import numpy as np
import pytest

from edge_client.decoder.tensors import Buffer, RowCopies


def rows_of(sequence: int, head: int, first: int, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Row numbers in a cache [B, h, R, d]."""
    return (sequence * shape[1] + head) * shape[2] + first + np.arange(count)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_are_written_where_they_belong_and_nowhere_else(dtype: type) -> None:
    shape = (3, 2, 16, 4)
    cache, copies = Buffer.zeros(shape, dtype), RowCopies()
    values = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    copies.write(cache, rows_of(1, 1, 7, 5, shape), values)
    expected = np.zeros(shape, dtype)
    expected[1, 1, 7:12] = values
    assert np.array_equal(cache.array, expected)
    assert np.array_equal(copies.read(cache, rows_of(1, 1, 6, 7, shape)), expected[1, 1, 6:13])


def test_a_part_is_the_same_memory() -> None:
    cache, copies = Buffer.zeros((4, 2, 8, 4)), RowCopies()
    part = cache.part(2, 3)
    assert part.pointer == cache.pointer + 2 * 2 * 8 * 4 * 4
    copies.write(part, np.array([9]), np.ones((1, 4)))
    assert cache.array[2, 1, 1].tolist() == [1, 1, 1, 1]
    assert cache.array.sum() == 4
    with pytest.raises(IndexError):
        cache.part(3, 5)


def test_memory_of_an_accelerator_is_not_an_array_of_the_host() -> None:
    foreign = Buffer((1,), np.dtype(np.float32), "cuda", 0, None)
    with pytest.raises(TypeError, match="RowCopies"):
        _ = foreign.array
