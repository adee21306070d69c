"""Vectors of several groups in one code: less is lost, payloads hold them, files say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_model.codec.codec import MemoryCodec, ProductCodec, unpack_bits
from memory_model.codec.faiss import unexplained_variance
from memory_model.codec.fit import fit_groups
from memory_model.codec.payload import HEADER, ExplicitMemory, MemoryFormat
from memory_model.codec.tables import ProductTables
from memory_model.config import MemoryConfig, MemoryHead
from memory_model.errors import CorruptFile, InvalidInput
from tests.memory_model.tiny import tiny_config

MODEL = "ab" * 32
ALL_TOKENS = MemoryConfig(heads=(MemoryHead(0, 1, 16), MemoryHead(2, 0, 16)), reference_tokens=16)


def alike(n: int, groups: int, d: int = 8, seed: int = 0) -> list[np.ndarray]:
    """Vectors of several groups that are different views of one thing, as those of a token are."""
    rng = np.random.default_rng(seed)
    views = np.random.default_rng(9).normal(size=(groups, 6, d))
    thing = rng.normal(size=(n, 6))
    return [(thing @ view + 0.05 * rng.normal(size=(n, d))).astype(np.float32) for view in views]


def joint(vectors: list[np.ndarray], parts: int, bits: int = 6, **options: int) -> ProductCodec:
    return fit_groups([np.concatenate(vectors, axis=1)], parts, bits, together=len(vectors), **options)


def test_what_vectors_have_in_common_is_stored_once() -> None:
    vectors = alike(3000, 4)
    alone, together = fit_groups(vectors, 2, 6, iterations=8), joint(vectors, 8, iterations=8)
    assert (
        together.code_bytes == 4 * alone.code_bytes - 2
    )  # two codes of 6 bits fill two bytes, eight fill six
    lost_alone = np.concatenate([unexplained_variance(alone, x, g) for g, x in enumerate(vectors)])
    lost_together = unexplained_variance(together, np.concatenate(vectors, axis=1), 0)
    assert lost_together.shape == (4,)
    assert lost_together.mean() < 0.5 * lost_alone.mean()


def test_a_group_whose_errors_count_more_gets_more_of_the_bits() -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=(3000, 8)).astype(np.float32) for _ in range(2)]
    both = np.concatenate(vectors, axis=1)
    even = fit_groups([both], 4, 6, [np.eye(8), np.eye(8)], together=2, iterations=8)
    uneven = fit_groups([both], 4, 6, [np.eye(8), 20 * np.eye(8)], together=2, iterations=8)
    assert unexplained_variance(uneven, both, 0)[1] < 0.8 * unexplained_variance(even, both, 0)[1]


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_decoding_is_mean_plus_codewords_times_basis(
    blocks: int, parts: int, bits: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    codewords = rng.normal(size=(blocks, parts, 1 << bits, width)).astype(np.float32)
    codewords *= rng.random((blocks, parts, 1, width)) < 0.7  # subspaces are padded with zeros
    basis = rng.normal(size=(blocks, parts * width, 6)).astype(np.float32)
    tables = ProductTables(rng.normal(size=(blocks, 6)).astype(np.float32), basis, codewords, together=2)
    codec = ProductCodec(tables)
    codes = rng.integers(0, 256, size=(7, codec.code_bytes), dtype=np.uint8)
    which = rng.integers(0, blocks, size=7)
    index = unpack_bits(codes, bits, parts)
    for row, b in enumerate(which):
        words = np.concatenate([codewords[b, m, index[row, m]] for m in range(parts)])
        expected = tables.mean[b] + words @ basis[b]
        np.testing.assert_allclose(codec.decode(codes, which)[row], expected, rtol=1e-3, atol=1e-4)


def memories(lengths: list[int], config: MemoryConfig, seed: int = 0) -> list[ExplicitMemory]:
    result = []
    for number, tokens in enumerate(lengths):
        vectors = alike(16, 2 * len(config.heads), seed=seed + number)
        sides = [np.zeros((config.budget, 8), np.float32) for _ in range(2)]
        for head, (start, own) in enumerate(zip(config.offsets, config.heads, strict=True)):
            count = min(tokens, own.tokens)
            for side in (0, 1):
                sides[side][start : start + count] = vectors[2 * head + side][:count]
        result.append(ExplicitMemory(*sides, tokens))
    return result


@given(st.lists(st.integers(1, 16), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_a_payload_holds_one_code_for_each_token(lengths: list[int]) -> None:
    config = tiny_config(memory=ALL_TOKENS)
    ours = MemoryFormat(config, MODEL, TOKEN_CODEC)
    written = memories(lengths, ALL_TOKENS)
    payloads = ours.encode(written)
    assert [len(p) - HEADER.size for p in payloads] == [n * TOKEN_CODEC.code_bytes for n in lengths]
    assert ours.full_bytes == 16 * TOKEN_CODEC.code_bytes
    for before, after in zip(written, ours.decode(payloads), strict=True):
        assert not after.keys[~np.isin(np.arange(32), ALL_TOKENS.valid_rows(before.tokens))].any()
        np.testing.assert_allclose(after.keys, before.keys, atol=2.5)
        assert ((after.values - before.values) ** 2).sum() < 0.1 * (before.values**2).sum()


def test_heads_of_different_budgets_are_coded_each_with_its_own_values() -> None:
    config = tiny_config()
    heads = config.memory.heads
    vectors = alike(2000, 2 * len(heads))
    pairs = [np.concatenate(vectors[g : g + 2], axis=1) for g in range(0, len(vectors), 2)]
    ours = MemoryFormat(config, MODEL, fit_groups(pairs, 5, 7, together=2, iterations=6))
    [before] = memories([11], config.memory)
    [after] = ours.decode(ours.encode([before]))
    for x, y in ((before.keys, after.keys), (before.values, after.values)):
        assert ((x - y) ** 2).sum() < 0.1 * (x**2).sum()


def test_a_token_codec_for_heads_that_keep_different_tokens_is_refused() -> None:
    config = tiny_config()
    codec = joint(alike(300, 2 * len(config.memory.heads)), 4, iterations=2)
    with pytest.raises(InvalidInput, match="every token"):
        MemoryFormat(config, MODEL, codec)


def test_blocks_that_do_not_fit_the_heads_are_refused() -> None:
    config = tiny_config(memory=ALL_TOKENS)
    with pytest.raises(InvalidInput, match="groups"):
        MemoryFormat(config, MODEL, joint(alike(300, 6), 4, iterations=2))


def test_a_file_of_blocks_reads_the_same_and_older_files_still_do(tmp_path: Path) -> None:
    TOKEN_CODEC.save(tmp_path / "new.npz")
    new = MemoryCodec.load(tmp_path / "new.npz")
    assert (new.together, new.groups, new.head_dim) == (4, 4, 8)
    assert new.codec_id == TOKEN_CODEC.codec_id
    plain = ProductCodec(fit_groups(alike(300, 2), 4, 4, iterations=2).tables)
    tables = ProductTables(*(plain.tables.arrays()[k] for k in ("mean", "basis", "codewords")))
    ProductCodec(tables).save(tmp_path / "old.npz")
    with np.load(tmp_path / "old.npz") as file:
        assert json.loads(bytes(file["header"])) == {
            "version": 1,
            "kind": "product",
            "groups": 2,
            "head_dim": 8,
        }
    assert (
        MemoryCodec.load(tmp_path / "old.npz").codec_id == plain.codec_id
    )  # how it encodes is not in the id


@pytest.mark.parametrize("together", [0, -1, 3, 5, "x"])
def test_a_file_with_an_impossible_block_is_refused(tmp_path: Path, together: object) -> None:
    TOKEN_CODEC.save(tmp_path / "codec.npz")
    with np.load(tmp_path / "codec.npz") as file:
        arrays = {k: file[k] for k in file.files}
    header = {**json.loads(bytes(arrays.pop("header"))), "together": together}
    np.savez(tmp_path / "codec.npz", header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    with pytest.raises((CorruptFile, InvalidInput)):
        MemoryCodec.load(tmp_path / "codec.npz")


def test_too_few_vectors_for_the_codewords_are_refused() -> None:
    with pytest.raises(InvalidInput, match="more references"):
        fit_groups(alike(200, 1), 2, 8)


def test_the_same_seed_gives_the_same_codec() -> None:
    ids = [joint(alike(400, 2), 5, 5, iterations=4, seed=seed).codec_id for seed in (3, 3, 4)]
    assert ids[0] == ids[1] != ids[2]


TOKEN_CODEC = joint(alike(2000, 4), 10, 7, iterations=6)
