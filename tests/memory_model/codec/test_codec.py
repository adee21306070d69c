"""Our decoder gives FAISS's own numbers; damaged codec files are refused."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_model.codec.codec import ExactCodec, MemoryCodec, ProductCodec, unpack_bits
from memory_model.codec.faiss import check_factory, tables_of_index, unexplained_variance
from memory_model.codec.fit import fit_groups
from memory_model.codec.native.decoder import TOLERANCE, FoldedTables
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from tests.memory_model.codec.native_libraries import libraries

# The paper's index with fewer centroids, so that it trains in a second: same stages, same bit packing; each with as
# few vectors as its centroids need.
FACTORIES = {"OPQ4_16,Residual2x6,PQ4x10": 1100, "OPQ4_16,PQ4x6": 300, "PQ8x8": 300, "Residual2x5,PQ2x9": 600}


def vectors(n: int, d: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)).astype(np.float32)


@pytest.mark.parametrize("factory", FACTORIES)
def test_decoding_equals_faiss(factory: str) -> None:
    index = faiss.index_factory(16, factory)
    index.train(vectors(FACTORIES[factory]))
    data = vectors(200, seed=1)
    theirs = index.sa_encode(data)
    codec = ProductCodec(tables_of_index(index))
    assert codec.code_bytes == theirs.shape[1]
    np.testing.assert_allclose(codec.decode(theirs, 0), index.sa_decode(theirs), atol=2e-5)
    np.testing.assert_array_equal(codec.encode(data, 0), theirs)
    for library in libraries():
        compiled = ProductCodec(codec.tables, library)
        assert isinstance(compiled.native(), FoldedTables)
        error = compiled.decode(theirs, 0) - index.sa_decode(theirs)
        assert np.linalg.norm(error) < TOLERANCE * np.linalg.norm(index.sa_decode(theirs))


def test_groups_keep_their_own_tables_in_one_batch(tmp_path: Path) -> None:
    groups = [vectors(2000, seed=s) * (1 + 3 * s) + 5 * s for s in range(3)]
    codec = fit_groups(groups, parts=4, bits=6, iterations=5)
    codec.save(tmp_path / "codec.npz")
    decoder = MemoryCodec.load(tmp_path / "codec.npz")
    assert isinstance(decoder, ProductCodec)
    assert decoder.codec_id == codec.codec_id
    codes = np.concatenate([codec.encode(g[:50], n) for n, g in enumerate(groups)])
    which = np.repeat([0, 1, 2], 50)
    together = decoder.decode(codes, which)
    for n, group in enumerate(groups):
        np.testing.assert_array_equal(together[which == n], decoder.decode(codes[which == n], n))
        assert unexplained_variance(codec, group, n) < 0.35
    shuffled = np.random.default_rng(0).permutation(len(codes))
    np.testing.assert_array_equal(decoder.decode(codes[shuffled], which[shuffled]), together[shuffled])


def test_a_metric_moves_the_error_to_where_it_does_not_count() -> None:
    data = vectors(4000)
    metric = np.diag([10.0] * 4 + [0.1] * 12)

    def felt(codec: MemoryCodec) -> float:
        error = data - codec.decode(codec.encode(data, 0), 0)
        return float(np.einsum("nd,de,ne->", error, metric, error))

    plain, weighted = fit_groups([data], 4, 5), fit_groups([data], 4, 5, [metric])
    assert felt(weighted) < 0.8 * felt(plain)


@given(st.integers(1, 16), st.integers(1, 12), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_bits_unpack_as_faiss_packs_them(bits: int, count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, size=(5, count))
    packed = np.zeros((5, (bits * count + 7) // 8), np.uint8)
    for row in range(5):
        writer = faiss.BitstringWriter(faiss.swig_ptr(packed[row]), packed.shape[1])
        for number in numbers[row]:
            writer.write(int(number), bits)
    np.testing.assert_array_equal(unpack_bits(packed, bits, count), numbers)


def test_the_exact_codec_loses_nothing(tmp_path: Path) -> None:
    ExactCodec(16).save(tmp_path / "codec.npz")
    codec = MemoryCodec.load(tmp_path / "codec.npz")
    data = vectors(20)
    np.testing.assert_array_equal(codec.decode(codec.encode(data, 0), 0), data)


@pytest.mark.parametrize("codes", [np.zeros((3, 5), np.uint8), np.zeros(4, np.uint8)])
def test_codes_of_another_size_are_refused(codes: np.ndarray) -> None:
    with pytest.raises(InvalidInput):
        fit_groups([vectors(500)], 4, 4, iterations=2).decode(codes, 0)


def test_an_unknown_group_is_refused() -> None:
    codec = fit_groups([vectors(500), vectors(500, seed=1)], 4, 4, iterations=2)
    for group in (2, -1):
        with pytest.raises(InvalidInput, match="group"):
            codec.decode(np.zeros((1, 2), np.uint8), group)


def test_a_missing_codec_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="fit-codec"):
        MemoryCodec.load(tmp_path / "none.npz")


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_damaged_codec_file_is_refused_or_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "whole.npz"
    if not path.is_file():
        fit_groups([vectors(500)], 4, 4, iterations=2).save(path)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = path.with_name("damaged.npz")
    if data.draw(st.booleans()):
        damaged.write_bytes(whole[:at])
    else:
        damaged.write_bytes(
            whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
        )
    try:
        codec = MemoryCodec.load(damaged)
    except CorruptFile:
        return
    assert codec.codec_id == MemoryCodec.load(path).codec_id  # a byte that means nothing, such as a file time


@pytest.mark.parametrize(
    ("factory", "vectors", "named"),
    [
        ("OPQ20x80,PQ8", 20000, "could not parse"),
        ("IVF16,Flat", 20000, "IndexIVFFlat"),
        ("OPQ20_80,Residual2x14,PQ8x10", 16383, "16,384 vectors"),
    ],
)
def test_a_factory_string_that_cannot_be_fitted_is_refused_before_memories_are_written(
    factory: str, vectors: int, named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        check_factory(factory, 80, vectors)
    check_factory("OPQ20_80,Residual2x14,PQ8x10", 80, 16384)
