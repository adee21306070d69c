"""What a codec is fitted to: a bounded uniform sample, in the metric in which errors are felt."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from memory_model.codec.payload import ExplicitMemory
from memory_model.config import MemoryConfig, MemoryHead
from memory_model.data.batches import IGNORE, Batch
from memory_model.errors import InvalidInput
from memory_model.train.codec_fit import reading_metrics, recipe, written_vectors
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
    return Batch(torch.randint(0, 64, (6, 16), generator=random), lengths, ids, labels, memories, torch.zeros_like(ids))


def test_a_recipe_is_parts_and_bits_of_a_token_or_faiss() -> None:
    assert recipe("tokens:52x8", HEADS) == (52, 8)
    assert recipe("OPQ16_64,PQ16x8", HEADS) is None
    for factory in ("tokens:", "tokens:25", "tokens:0x8", "tokens:4x17"):
        with pytest.raises(InvalidInput, match="tokens:PARTSxBITS"):
            recipe(factory, HEADS)
    with pytest.raises(InvalidInput, match="different tokens"):
        recipe("tokens:52x8", tiny_config().memory)


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


def test_a_tokens_vectors_lie_side_by_side_in_the_order_of_its_code() -> None:
    texts = [str(n) for n in range(16)]
    found = written_vectors(Writer(), HEADS, texts, 4)  # type: ignore[arg-type]
    assert found.shape == (sum(range(1, 17)), 32)
    np.testing.assert_array_equal(np.bincount(found[:, 0].astype(int)), np.arange(1, 17))
    np.testing.assert_array_equal(found[:, :8], -found[:, 8:16])


def test_a_values_metric_is_what_the_output_projection_makes_of_an_error() -> None:
    model = tiny_model(CONFIG)
    metrics = reading_metrics(model, iter([batch()]), PREFIX)
    assert [m.shape for m in metrics] == [(8, 8)] * 4
    rng = np.random.default_rng(0)
    error = rng.normal(size=8)
    out = model.blocks[2].self_attn.o_proj.weight.detach().double().numpy()
    moved = sum(float(((out[:, h * 8 : (h + 1) * 8] @ error) ** 2).sum()) for h in (0, 1))  # head 0's two queries
    other = rng.normal(size=8)
    moved_other = sum(float(((out[:, h * 8 : (h + 1) * 8] @ other) ** 2).sum()) for h in (0, 1))
    assert error @ metrics[3] @ error / (other @ metrics[3] @ other) == pytest.approx(moved / moved_other)
