"""Our decoder gives FAISS's own numbers; a token's vectors share a code; damaged codec files are refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from memory3.codec.blas import one_thread
from memory3.codec.codec import ExactCodec, MemoryCodec, ProductCodec
from memory3.codec.loading import load_codec
from memory3.codec.native.library import FoldedTables
from memory3.codec.payload import HEADER, ExplicitMemory, MemoryFormat
from memory3.config import MemoryConfig, MemoryHead
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.runtime.answerability import AnswerabilityProbe
from memory_model.codec.faiss import check_factory, tables_of_index
from memory_model.codec.fit import fit_tables
from memory_model.nn.decompression import TorchCodec
from tests.memory3.codec.native_builds import libraries
from tests.memory_model.tiny import tiny_config

# The paper's index with fewer centroids, so that it trains in a second: same stages, same bit packing; each with as
# few vectors as its centroids need, and np: without the polysemous training that only orders them.
FACTORIES = {"OPQ4_16,Residual2x6,PQ4x10": 1100, "OPQ4_16,PQ4x6np": 300, "PQ8x8np": 300, "Residual2x5,PQ2x9": 600}
ALL_TOKENS = MemoryConfig(heads=(MemoryHead(0, 1, 16), MemoryHead(2, 0, 16)), reference_tokens=16)


def vectors(n: int, d: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)).astype(np.float32)


def of_tokens(n: int, together: int = 4, d: int = 8, seed: int = 0) -> np.ndarray:
    """Vectors side by side that are different views of one thing, as those of a token are."""
    rng, views = np.random.default_rng(seed), np.random.default_rng(9).normal(size=(6, together * d))
    return (rng.normal(size=(n, 6)) @ views + 0.05 * rng.normal(size=(n, together * d))).astype(np.float32)


@pytest.fixture(scope="module")
def token_codec() -> ProductCodec:
    return fit_tables(of_tokens(1000), 8, 6, together=4, iterations=5)


@pytest.mark.parametrize("factory", FACTORIES)
def test_decoding_equals_faiss(factory: str) -> None:
    index = faiss.index_factory(16, factory)
    index.train(vectors(FACTORIES[factory]))
    data = vectors(200, seed=1)
    theirs = index.sa_encode(data)
    codec = ProductCodec(tables_of_index(index))
    assert codec.code_bytes == theirs.shape[1]
    np.testing.assert_allclose(codec.decode(theirs), index.sa_decode(theirs), atol=2e-5)
    np.testing.assert_array_equal(codec.encode(data), theirs)
    on_device = TorchCodec(codec, "cpu").decode_rows(theirs, np.arange(200), 200)
    np.testing.assert_allclose(on_device, index.sa_decode(theirs), atol=2e-5)
    for library in libraries():
        compiled = ProductCodec(codec.tables, library)
        assert isinstance(compiled.native, FoldedTables)
        error = compiled.decode(theirs) - index.sa_decode(theirs)
        assert np.linalg.norm(error) < FoldedTables.tolerance * np.linalg.norm(index.sa_decode(theirs))


def test_a_metric_moves_the_error_to_where_it_does_not_count() -> None:
    data = vectors(4000)
    metric = np.diag([10.0] * 4 + [0.1] * 12)

    def felt(codec: MemoryCodec) -> float:
        error = data - codec.decode(codec.encode(data))
        return float(np.einsum("nd,de,ne->", error, metric, error))

    assert felt(fit_tables(data, 4, 5, [metric])) < 0.8 * felt(fit_tables(data, 4, 5))


def test_a_code_describes_at_most_the_axes_it_is_given() -> None:
    data = vectors(1000)
    few, many = fit_tables(data, 4, 6, widest=2, iterations=3), fit_tables(data, 4, 6, iterations=3)
    assert few.tables.codewords.shape == (4, 64, 2)
    assert len(few.tables.basis) < len(many.tables.basis)


def test_a_basis_is_kept_in_bytes_where_that_loses_nothing(token_codec: ProductCodec, tmp_path: Path) -> None:
    token_codec.save(tmp_path / "bytes.npz")
    rotation, *_ = np.linalg.qr(np.random.default_rng(1).normal(size=token_codec.tables.basis.shape))
    tables = replace(token_codec.tables, basis=rotation.astype(np.float32))
    ProductCodec(tables).save(tmp_path / "floats.npz")
    for name, dtype in (("bytes", np.int8), ("floats", np.float32)):
        with np.load(tmp_path / f"{name}.npz") as file:
            assert file["basis"].dtype == dtype
    read = load_codec(tmp_path / "bytes.npz"), load_codec(tmp_path / "floats.npz")
    assert [codec.codec_id for codec in read] == [token_codec.codec_id, ProductCodec(tables).codec_id]


def test_a_payload_holds_one_code_for_each_token(token_codec: ProductCodec) -> None:
    ours = MemoryFormat(tiny_config(memory=ALL_TOKENS), "ab" * 32, token_codec)
    sides = of_tokens(9, seed=3).reshape(9, 4, 8)
    rows = np.zeros((2, 32, 8), np.float32)
    for head in (0, 1):
        rows[:, 16 * head : 16 * head + 9] = sides[:, 2 * head : 2 * head + 2].transpose(1, 0, 2)
    [payload] = ours.encode([ExplicitMemory(rows[0], rows[1], 9)])
    assert len(payload) - HEADER.size == 9 * token_codec.code_bytes
    assert ours.full_bytes == 16 * token_codec.code_bytes
    [after] = ours.decode([payload])
    assert not after.keys[~np.isin(np.arange(32), ALL_TOKENS.valid_rows(9))].any()
    for before, found in zip(rows, (after.keys, after.values), strict=True):
        assert ((found - before) ** 2).sum() < 0.1 * (before**2).sum()


def test_a_codec_of_tokens_is_refused_for_heads_that_keep_different_ones(token_codec: ProductCodec) -> None:
    with pytest.raises(InvalidInput, match="divide"):
        MemoryFormat(tiny_config(), "ab" * 32, token_codec)
    heads = (MemoryHead(0, 1, 16), MemoryHead(2, 0, 8))
    with pytest.raises(InvalidInput, match="equally many tokens, not 8, 16"):
        MemoryFormat(tiny_config(memory=MemoryConfig(heads, reference_tokens=16)), "ab" * 32, token_codec)


def test_a_file_reads_the_same_and_one_of_tables_a_head_is_refused(token_codec: ProductCodec, tmp_path: Path) -> None:
    data = of_tokens(20)
    for codec in (token_codec, ExactCodec(32)):
        codec.save(tmp_path / "codec.npz")
        read = load_codec(tmp_path / "codec.npz")
        assert (read.codec_id, read.together, read.head_dim) == (codec.codec_id, codec.together, codec.head_dim)
        np.testing.assert_allclose(read.decode(read.encode(data)), codec.decode(codec.encode(data)), atol=1e-2)
    token_codec.save(tmp_path / "codec.npz")
    with np.load(tmp_path / "codec.npz") as file:
        twice = {name: np.concatenate([file[name]] * (1 + (name != "header"))) for name in file.files}
    np.savez(tmp_path / "heads.npz", **twice)
    with pytest.raises(CorruptFile, match="fit a codec anew"):
        load_codec(tmp_path / "heads.npz")
    with pytest.raises(MissingFile, match="fit-codec"):
        load_codec(tmp_path / "none.npz")


@pytest.mark.parametrize("content", [b"", b'{"bits": 4}', b"\x93NUMPY\x01\x00"])
def test_a_file_of_another_kind_is_called_so_and_no_advice_is_given_to_trust_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "codec.npz"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"is not a codec file \(File is not a zip file\)"):
        load_codec(path)
    with pytest.raises(CorruptFile, match=r"is no probe of answerability: File is not a zip file"):
        AnswerabilityProbe.load(path, tiny_config(), "")


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_damaged_file_is_refused_or_the_same(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "whole.npz"
    if not path.is_file():
        fit_tables(vectors(500), 4, 4, iterations=2).save(path)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    other = bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    damaged = path.with_name("damaged.npz")
    damaged.write_bytes(whole[:at] + (b"" if data.draw(st.booleans()) else other))
    try:
        codec = load_codec(damaged)
    except CorruptFile:
        return
    assert codec.codec_id == load_codec(path).codec_id  # a byte that means nothing, such as a file time


@pytest.mark.parametrize(
    ("factory", "vectors", "named"),
    [
        ("OPQ20x80,PQ8", 20000, "could not parse"),
        ("IVF16,Flat", 20000, "IndexIVFFlat"),
        ("PCA40,PQ20x8", 20000, "PCAMatrix"),
        ("OPQ20_64,PQ16x8", 20000, "20 parts do not share 64 numbers"),
        ("OPQ20_80,Residual2x14,PQ8x10", 16383, "16,384 vectors"),
    ],
)
def test_a_factory_that_cannot_be_fitted_is_refused_before_any_writing(factory: str, vectors: int, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        check_factory(factory, 80, vectors)
    check_factory("OPQ20_80,Residual2x14,PQ8x10", 80, 16384)


def test_products_that_overlap_stay_on_their_thread_and_give_back_what_was_before() -> None:
    def blas() -> set[int]:
        return {e["num_threads"] for e in threadpool_info() if e.get("threading_layer") == "pthreads"}

    def product() -> None:
        with one_thread():
            seen.append(blas())

    seen: list[set[int]] = []
    with threadpool_limits(2, user_api="blas"):
        threads = [threading.Thread(target=product) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [{1}] * 4
        assert blas() == {2}
