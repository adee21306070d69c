"""The codec in the tuning loop does what the real one does, lets gradients through and follows the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from memory_model.codec.faiss import FaissCodec, fit_factory
from memory_model.codec.fit import fit_groups
from memory_model.config import MemoryConfig, MemoryHead
from memory_model.errors import InvalidInput
from memory_model.nn.decoder import MemoryBatch
from memory_model.train.codec_noise import CodecInTheLoop
from tests.memory_model.codec.test_codec_blocks import alike, joint

HEADS = MemoryConfig(heads=(MemoryHead(0, 1, 16), MemoryHead(2, 0, 16)), reference_tokens=16)
CODECS = {
    "tokens": joint(alike(2000, 4), 6, 6, iterations=4),
    "groups": fit_groups(alike(2000, 4), 3, 6, iterations=4),
    "table": fit_factory(np.concatenate(alike(2000, 4)), "OPQ4_8,PQ4x6"),
}


def batch(references: int = 40, seed: int = 5, shift: float = 0.0) -> MemoryBatch:
    """Memories of two heads; the last reference has only 3 tokens."""
    vectors = [x.reshape(references, 16, 8) + shift for x in alike(references * 16, 4, seed=seed)]
    valid = torch.ones(references, 32, dtype=torch.bool)
    valid[-1, 3:16] = valid[-1, 19:] = False
    keys, values = (torch.from_numpy(np.concatenate(vectors[side::2], axis=1)).float() for side in (0, 1))
    return MemoryBatch(keys * valid[..., None], values * valid[..., None], valid)


def by_hand(codec: FaissCodec, memory: MemoryBatch) -> tuple[np.ndarray, np.ndarray]:
    sides = [x.numpy().copy() for x in (memory.keys, memory.values)]
    for first in range(0, 4, codec.together):
        groups = range(first, first + codec.together)
        x = np.concatenate([sides[g % 2][:, g // 2 * 16 :][:, :16] for g in groups], axis=2)
        y = codec.decode(
            codec.encode(x.reshape(len(x) * 16, -1), first // codec.together), first // codec.together
        )
        for g, part in zip(groups, np.split(y, codec.together, axis=1), strict=True):
            sides[g % 2][:, g // 2 * 16 :][:, :16] = part.reshape(len(x), 16, 8)
    hole = memory.valid.numpy()[..., None]
    return sides[0] * hole, sides[1] * hole


@pytest.mark.parametrize("name", CODECS)
def test_memories_come_out_as_from_the_real_codec(name: str) -> None:
    memory = batch()
    out = CodecInTheLoop(CODECS[name], HEADS)(memory)
    keys, values = by_hand(CODECS[name], memory)
    # A vector that lies between two codewords may fall to either.
    for ours, theirs in ((out.keys, keys), (out.values, values)):
        same = np.isclose(ours.numpy(), theirs, atol=1e-3).all(axis=2)
        assert same.mean() > 0.99
    assert not out.keys[-1, 3:16].any()


def test_gradients_pass_as_if_there_were_no_codec() -> None:
    memory = batch()
    keys = memory.keys.clone().requires_grad_()
    weights = torch.randn(keys.shape, generator=torch.Generator().manual_seed(0))
    out = CodecInTheLoop(CODECS["tokens"], HEADS)(MemoryBatch(keys, memory.values, memory.valid))
    assert not torch.equal(out.keys, keys)
    (out.keys * weights).sum().backward()
    torch.testing.assert_close(keys.grad, weights)


def test_bfloat16_memories_stay_bfloat16() -> None:
    memory = batch()
    half = MemoryBatch(memory.keys.bfloat16(), memory.values.bfloat16(), memory.valid)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = CodecInTheLoop(CODECS["tokens"], HEADS)(half)
    assert out.keys.dtype == torch.bfloat16


def lost(loop: CodecInTheLoop, memory: MemoryBatch) -> float:
    return float((loop(memory).keys - memory.keys).square().sum())


def test_tables_follow_vectors_that_move() -> None:
    loop = CodecInTheLoop(CODECS["tokens"], HEADS, refit_every=1, iterations=3, share=1.0)
    moved = batch(seed=6, shift=1.5)
    before = lost(loop, moved)
    loop.after_step(0)
    assert lost(loop, moved) < 0.7 * before


def test_tables_stay_between_fittings() -> None:
    loop = CodecInTheLoop(CODECS["tokens"], HEADS, refit_every=4)
    moved = batch(seed=6, shift=1.5)
    before = lost(loop, moved)
    for step in range(3):
        loop.after_step(step)
        assert lost(loop, moved) == before


def test_a_resumed_loop_goes_on_exactly() -> None:
    one, other = (CodecInTheLoop(CODECS["tokens"], HEADS, refit_every=2) for _ in range(2))
    for step in range(3):
        one(batch(seed=step))
        one.after_step(step)
    other.load_state_dict(one.state_dict())
    for step in range(3, 6):
        ours, theirs = one(batch(seed=step)), other(batch(seed=step))
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
        one.after_step(step)
        other.after_step(step)


def test_codecs_that_the_loop_cannot_use_are_refused() -> None:
    with pytest.raises(InvalidInput, match="groups"):
        CodecInTheLoop(joint(alike(300, 6), 3, 4, iterations=2), HEADS)
    uneven = MemoryConfig(heads=(MemoryHead(0, 1, 16), MemoryHead(2, 0, 9)), reference_tokens=16)
    with pytest.raises(InvalidInput, match="every token"):
        CodecInTheLoop(CODECS["tokens"], uneven)
    paper = fit_factory(np.concatenate(alike(2000, 4)), "Residual2x4,PQ4x6")
    with pytest.raises(InvalidInput, match="coarse"):
        CodecInTheLoop(paper, HEADS)
    loop = CodecInTheLoop(CODECS["groups"], HEADS)
    with pytest.raises(InvalidInput, match="another codec"):
        loop.load_state_dict({**CodecInTheLoop(joint(alike(300, 4), 4, 4), HEADS).state_dict()})
