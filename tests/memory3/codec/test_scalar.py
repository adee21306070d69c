"""Numbers rounded one by one: the same in C and numpy, near the vectors, from a few memories of a model."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory3.codec.loading import load_codec
from memory3.codec.payload import MemoryFormat
from memory3.codec.scalar import ScalarCodec, ScalarTables
from memory3.config import MemoryConfig, MemoryHead
from memory3.errors import CorruptFile, InvalidInput
from tests.edge_client.tiny_bundle import random_memory
from tests.memory3.codec.native_builds import SIZES, libraries
from tests.memory_model.tiny import tiny_config


def random_tables(rng: np.random.Generator, head_dim: int, together: int, bits: int) -> ScalarTables:
    offset, step = rng.normal(size=head_dim * together), rng.random(head_dim * together) + 0.1
    return ScalarTables(offset.astype(np.float32), step.astype(np.float32), bits, together)


def keys_like(n: int, width: int, seed: int = 0) -> np.ndarray:
    """Numbers with spreads and means of their own, as the channels of keys have."""
    rng, channels = np.random.default_rng(seed), np.random.default_rng(9)
    spread, mean = channels.lognormal(size=width), 10 * channels.normal(size=width)
    return (rng.normal(size=(n, width)) * spread + mean).astype(np.float32)


@given(
    st.sampled_from([2, 6, 16, 64, 128]),
    st.integers(1, 5),
    st.sampled_from([4, 8]),
    st.sampled_from(SIZES),
    st.integers(0, 2**32),
)
@settings(max_examples=25, deadline=None)
def test_compiled_codes_are_numpys(head_dim: int, together: int, bits: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, head_dim, together, bits)
    codec, rows = ScalarCodec(tables), rng.permutation(n * together)
    codes = rng.integers(0, 256, (n, codec.code_bytes), np.uint8)
    wanted = codec.decode_rows(codes, rows, n * together + 1)
    assert not wanted[-1].any()
    np.testing.assert_array_equal(codec.encode(codec.decode(codes)), codes)
    for library in libraries():
        compiled = ScalarCodec(tables, library)
        assert compiled.native is not None
        np.testing.assert_allclose(compiled.decode_rows(codes, rows, n * together + 1), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("bits", "most"), [(4, 0.013), (8, 1e-3)])
def test_steps_from_a_few_memories_lose_little_of_others(bits: int, most: float) -> None:
    codec, fresh = ScalarCodec(ScalarTables.of(keys_like(800, 48), bits, 6)), keys_like(500, 48, seed=1)
    lost = np.square(codec.decode(codec.encode(fresh)) - fresh).sum(0) / np.square(fresh - fresh.mean(0)).sum(0)
    assert lost.mean() < most


def test_a_number_that_never_changes_comes_back() -> None:
    still = np.full((5, 8), 3.5, np.float32)
    codec = ScalarCodec(ScalarTables.of(still, 4))
    np.testing.assert_allclose(codec.decode(codec.encode(still)), still, atol=1e-5)


def test_heads_that_keep_equally_many_tokens_share_codes() -> None:
    config = tiny_config(memory=MemoryConfig((MemoryHead(0, 0, 4), MemoryHead(1, 1, 4)), reference_tokens=16))
    codec = ScalarCodec(ScalarTables.of(keys_like(100, 4 * config.head_dim) / 10, 8, 4))
    ours, memory = MemoryFormat(config, "ab" * 32, codec), random_memory(config, 0, 9)
    assert ours.full_bytes == 4 * 4 * config.head_dim
    (read,) = ours.decode(ours.encode([memory]))
    assert (read.keys.shape, read.tokens) == (memory.keys.shape, 9)


def test_a_file_reads_the_same(tmp_path: Path) -> None:
    codec = ScalarCodec(ScalarTables.of(keys_like(100, 16), 4, 2))
    codec.save(tmp_path / "codec.npz")
    read = load_codec(tmp_path / "codec.npz")
    assert (read.codec_id, read.code_bytes, read.head_dim) == (codec.codec_id, 8, 8)
    np.testing.assert_array_equal(read.encode(keys_like(9, 16)), codec.encode(keys_like(9, 16)))


@pytest.mark.parametrize("change", [{"step": np.zeros(8)}, {"step": np.full(8, np.nan)}, {"offset": np.zeros(6)}])
def test_arrays_that_do_not_belong_together_are_refused(change: dict[str, np.ndarray], tmp_path: Path) -> None:
    arrays = {"offset": np.zeros(8), "step": np.ones(8)} | change
    with pytest.raises(InvalidInput):
        ScalarTables(**arrays, bits=4)
    header = b'{"version": 3, "kind": "scalar", "head_dim": 8, "together": 1, "bits": 4}'
    np.savez(tmp_path / "codec.npz", header=np.frombuffer(header, np.uint8), **arrays)
    with pytest.raises(CorruptFile):
        load_codec(tmp_path / "codec.npz")


def test_vectors_of_another_width_are_refused() -> None:
    with pytest.raises(InvalidInput, match="shape"):
        ScalarCodec(ScalarTables.of(keys_like(100, 16), 4, 2)).encode(keys_like(3, 8))
