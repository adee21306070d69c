"""What a codec is fitted to: a bounded uniform sample, in the metric in which errors are felt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from memory_model.codec.payload import ExplicitMemory
from memory_model.config import MemoryConfig, MemoryHead
from memory_model.data.batches import IGNORE, Batch
from memory_model.errors import InvalidInput
from memory_model.nn.writing import write_memories
from memory_model.train.codec_fit import Recipe, reading_metrics, written_blocks
from tests.memory_model.tiny import PREFIX, tiny_config, tiny_model

HEADS = MemoryConfig(heads=(MemoryHead(0, 1, 16), MemoryHead(2, 0, 16)), reference_tokens=16, chunk_tokens=8)
CONFIG = tiny_config(memory=HEADS)


def batch(seed: int = 0) -> Batch:
    """Six references of 9 to 16 tokens; four texts of which each reads three, the last 5 tokens answers."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 64, (4, 12), generator=random)
    labels = torch.full_like(ids, IGNORE)
    labels[:, -5:] = ids[:, -5:]
    lengths = torch.randint(9, 17, (6,), generator=random)
    memories = torch.stack([torch.randperm(6, generator=random)[:3] for _ in range(4)])[:, None]
    return Batch(
        torch.randint(0, 64, (6, 16), generator=random), lengths, ids, labels, memories, torch.zeros_like(ids)
    )


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("groups:25x8", Recipe(1, 25, 8)),
        ("heads:26x8", Recipe(2, 26, 8)),
        ("tokens:52x8", Recipe(4, 52, 8)),
        ("OPQ16_64,PQ16x8", Recipe(faiss="OPQ16_64,PQ16x8")),
    ],
)
def test_a_recipe_says_what_is_coded_together(factory: str, expected: Recipe) -> None:
    assert Recipe.parse(factory, HEADS) == expected


@pytest.mark.parametrize(
    "factory", ["groups:", "groups:25", "groups:0x8", "layers:4x8", "tokens:4x17", "heads:-1x8", ":"]
)
def test_a_recipe_that_is_none_is_refused(factory: str) -> None:
    with pytest.raises(InvalidInput, match="groups:25x8"):
        Recipe.parse(factory, HEADS)


def test_tokens_cannot_be_coded_together_where_heads_keep_different_ones() -> None:
    with pytest.raises(InvalidInput, match="different tokens"):
        Recipe.parse("tokens:52x8", tiny_config().memory)


class Writer:
    """Writes memories in which every number is the reference's own."""

    def write(
        self, references: Sequence[str], batch_size: int = 16, progress: Callable[[int], None] | None = None
    ) -> list[ExplicitMemory]:
        made = []
        for text in references:
            tokens = 1 + int(text) % 16
            keys = np.zeros((32, 8), np.float32)
            keys[HEADS.valid_rows(tokens)] = float(text)
            made.append(ExplicitMemory(keys, -keys, tokens))
        return made


def test_blocks_hold_every_vector_of_their_groups_side_by_side() -> None:
    texts = [str(n) for n in range(16)]
    [block] = written_blocks(Writer(), HEADS, texts, 4)  # type: ignore[arg-type]
    assert block.shape == (sum(range(1, 17)), 32)
    np.testing.assert_array_equal(np.bincount(block[:, 0].astype(int)), np.arange(1, 17))
    np.testing.assert_array_equal(block[:, :8], -block[:, 8:16])


def test_a_values_metric_is_what_the_output_projection_makes_of_an_error() -> None:
    model = tiny_model(CONFIG)
    metrics = reading_metrics(model, iter([batch()]), PREFIX)
    assert [m.shape for m in metrics] == [(8, 8)] * 4
    rng = np.random.default_rng(0)
    error = rng.normal(size=8)
    out = model.blocks[2].self_attn.o_proj.weight.detach().double().numpy()
    moved = sum(
        float(((out[:, h * 8 : (h + 1) * 8] @ error) ** 2).sum()) for h in (0, 1)
    )  # head 0's two queries
    other = rng.normal(size=8)
    moved_other = sum(float(((out[:, h * 8 : (h + 1) * 8] @ other) ** 2).sum()) for h in (0, 1))
    assert error @ metrics[3] @ error / (other @ metrics[3] @ other) == pytest.approx(moved / moved_other)


def test_metrics_are_in_the_unit_of_their_vectors_spread() -> None:
    model, read = tiny_model(CONFIG), batch()
    metrics = reading_metrics(model, iter([read]), PREFIX)
    with torch.no_grad():
        written = write_memories(model, read.reference_ids, read.reference_lengths, PREFIX)
    values = written.values[:, 16:][written.valid[:, 16:]].numpy()
    spread = np.cov(values.T, bias=True)
    assert np.trace(metrics[3] @ spread) == pytest.approx(1.0, rel=1e-4)
