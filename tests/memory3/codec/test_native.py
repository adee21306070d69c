"""Codes decoded in C, at every level that this processor runs, are what numpy decodes."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory3.codec.codec import ProductCodec
from memory3.codec.loading import load_codec
from memory3.codec.native import compile as native_compile
from memory3.codec.native import library as native_library
from memory3.codec.native.library import ByteProduct, FoldedTables, Library
from memory3.codec.tables import ProductTables
from memory3.errors import InvalidInput
from memory_model.nn.decompression import TorchCodec
from testing.programs import ran
from tests.memory3.codec.native_builds import SIZES, libraries


def random_tables(
    rng: np.random.Generator, parts: int, bits: int, wide: int, d: int, coarse_bits: int | None, together: int
) -> ProductTables:
    """Tables as a trained codec has them, with coordinates that are always zero among them."""
    words = rng.normal(size=(parts, 1 << bits, wide)) * (rng.random((parts, 1, wide)) < 0.8)
    coarse = None if coarse_bits is None else rng.normal(size=(2, 1 << coarse_bits, parts * wide // 2))
    arrays = rng.normal(size=d), rng.normal(size=(parts * wide, d)), words, coarse
    mean, basis, words, coarse = (None if a is None else a.astype(np.float32) for a in arrays)
    return ProductTables(mean, basis, words, coarse, together=together)


shapes = st.tuples(
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([2, 4]),
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(1, 7)),
    st.integers(1, 3),
)


@given(shapes, st.sampled_from(SIZES), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_sums_of_folded_rows_are_numpys(shape: tuple[int, int, int, int, int | None, int], n: int, seed: int) -> None:
    parts, bits, wide, head_dim, coarse_bits, together = shape
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, parts, bits, wide, head_dim * together, coarse_bits, together)
    codes = rng.integers(0, 256, (n, tables.code_bytes), np.uint8)
    wanted, indices = ProductCodec(tables).decode(codes), rng.permutation(n * together)
    on_device = TorchCodec(ProductCodec(tables), "cpu").decode_rows(codes, indices, n * together + 1)
    np.testing.assert_allclose(on_device[indices].reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)
    assert not on_device[-1].any()
    basis = np.split(tables.basis, parts)
    summed = [np.abs(words @ own).max(0) for words, own in zip(tables.codewords, basis, strict=True)]
    if tables.coarse is not None:
        halves = np.split(tables.basis, 2)
        summed += [np.abs(words @ own).max(0) for words, own in zip(tables.coarse, halves, strict=True)]
    bound = 2e-4 * np.sum(summed, axis=0) + 1e-5 * (1 + np.abs(wanted))  # four rows are rounded to 2^-15 each
    for library in libraries():
        found = np.empty((n * together, head_dim), np.float32)
        FoldedTables(tables, library).decode_into(codes, indices, found)
        assert (np.abs(found[indices].reshape(wanted.shape) - wanted) <= bound).all()


def test_the_papers_codec_has_a_loop_of_its_own_that_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    tables = random_tables(rng, 8, 10, 10, 80, 14, 1)
    codes = rng.integers(0, 256, (501, 14), np.uint8)
    wanted = ProductCodec(tables).decode(codes)
    for library in libraries():
        codec = ProductCodec(tables, library)
        found = codec.decode(codes)
        assert np.linalg.norm(found - wanted) <= FoldedTables.tolerance * np.linalg.norm(wanted)
        np.testing.assert_array_equal(codec.decode(codes[500:]), found[500:])


def test_tables_with_a_number_far_larger_than_the_others_are_left_to_numpy() -> None:
    tables = random_tables(np.random.default_rng(0), 4, 6, 4, 16, 3, 1)
    ordinary = tables.codewords.copy()
    tables.codewords[:, 0, 0] = 1e6
    for library in libraries():
        assert isinstance(ProductCodec(replace(tables, codewords=ordinary), library).native, FoldedTables)
        assert ProductCodec(tables, library).native is None


def test_a_codec_too_wide_to_fold_is_left_to_numpy_or_multiplied_in_bytes() -> None:
    tables = random_tables(np.random.default_rng(0), 40, 8, 4, 1024, None, 1)
    for library in libraries():
        found = ProductCodec(tables, library).native
        assert isinstance(found, ByteProduct) if library.multiplies else found is None


@pytest.fixture(scope="module")
def multiplying() -> Library:
    """The library at the lowest level that multiplies bytes."""
    found = [library for library in libraries() if library.multiplies]
    if not found:
        pytest.skip("this processor has no AVX-512 with VNNI")
    return found[0]


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([2, 6, 8, 10])),
    st.sampled_from([16, 48, 64, 80]),
    st.integers(1, 5),
    st.sampled_from(SIZES),
    st.integers(0, 2**32),
)
@settings(max_examples=25, deadline=None)
def test_a_product_of_bytes_is_within_its_rounding_of_what_numpy_decodes(
    multiplying: Library, shape: tuple[int, int, int], head_dim: int, together: int, n: int, seed: int
) -> None:
    parts, bits, wide = shape
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, parts, bits, wide, head_dim * together, None, together)
    codes, indices = rng.integers(0, 256, (n, tables.code_bytes), np.uint8), rng.permutation(n * together)
    found = np.full((n * together, head_dim), np.nan, np.float32)
    ByteProduct(tables, multiplying).decode_into(codes, indices, found)
    wanted = ProductCodec(tables).decode(codes)
    step = np.ptp(tables.codewords, axis=1).reshape(-1, 1) / 255
    reach = step * np.abs(tables.basis)
    # A coordinate's byte is wrong by half a step, and its row of the basis by half a step of its largest number.
    bound = 0.51 * (reach.sum(0) + len(reach) * reach.max(0)) + 1e-5 * (1 + np.abs(wanted))
    assert (np.abs(found[indices].reshape(wanted.shape) - wanted) <= bound).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": np.array([0, 1, 4])}, "row that does not exist"),
        ({"indices": np.array([0, -1, 2])}, "row that does not exist"),
        ({"indices": np.array([0, 1])}, "indices"),
        ({"codes": np.zeros((3, 8), np.uint8)[:, ::2]}, "codes"),
        ({"rows": np.zeros((4, 16), np.float64)}, "rows"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(change: dict[str, np.ndarray], message: str) -> None:
    tables = random_tables(np.random.default_rng(0), 4, 6, 2, 16, None, 1)
    codes = np.zeros((3, tables.code_bytes), np.uint8)
    for library in libraries():
        for kind in (FoldedTables, ByteProduct) if library.multiplies else (FoldedTables,):
            rows = np.zeros((4, 16), np.float32)
            whole = {"codes": codes, "indices": np.arange(3), "rows": rows}
            with pytest.raises(InvalidInput, match=message):
                kind(tables, library).decode_into(**(whole | change))
            assert not rows.any()


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which the library is looked for."""
    monkeypatch.setattr(native_library, "FOLDER", tmp_path)
    native_library.why_missing.cache_clear()
    yield tmp_path
    native_library.why_missing.cache_clear()


def test_without_a_library_a_codec_file_is_decoded_by_numpy(installation: Path) -> None:
    ProductCodec(random_tables(np.random.default_rng(0), 4, 6, 2, 8, None, 1)).save(installation / "codec.npz")
    codec = load_codec(installation / "codec.npz")
    assert isinstance(codec, ProductCodec)
    assert codec.native is None
    assert "memory3.codec.native.compile" in native_library.why_missing()


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF\x02\x01\x01"])
def test_a_library_that_cannot_be_loaded_is_said_and_not_used(installation: Path, content: bytes) -> None:
    (installation / native_compile.LIBRARY).write_bytes(content)
    assert native_library.installed() is None
    assert native_compile.LIBRARY in native_library.why_missing()


def test_a_compiler_that_is_missing_or_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler" in native_compile.compile_library(tmp_path / "library.so")
    monkeypatch.setenv("CC", "false")
    assert "failed" in native_compile.compile_library(tmp_path / "library.so")
    assert list(tmp_path.iterdir()) == []


def test_compiling_needs_nothing_but_the_standard_library() -> None:
    """The build of the package runs it in an environment that has not even numpy."""
    path = Path(native_compile.__file__)
    code = f"import runpy, sys; m = runpy.run_path({str(path)!r}); print(m['wheel_tag']())"
    assert ran(sys.executable, "-I", "-S", "-c", code).startswith("py3-none-")
