"""What a codec is fitted to: a bounded uniform sample, in the metric in which errors are felt."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress

from memory3.codec.payload import ExplicitMemory
from memory3.config import MemoryConfig, MemoryHead
from memory3.errors import InvalidInput
from memory_model.data.batches import IGNORE, Batch
from memory_model.nn.decoder import Attention
from memory_model.train.codec_fit import fit, reading_metrics, recipe, written_vectors
from tests.memory_model.tiny import PREFIX, tiny_config, tiny_model

HEADS = MemoryConfig(heads=(MemoryHead(0, 1, 16), MemoryHead(2, 0, 16)), reference_tokens=16, chunk_tokens=8)
CONFIG = tiny_config(memory=HEADS)


def batch() -> Batch:
    """Six references of 9 to 16 tokens; four texts of which each reads three, the last 5 tokens answers."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 64, (4, 12), generator=random)
    labels = torch.full_like(ids, IGNORE)
    labels[:, -5:] = ids[:, -5:]
    lengths = torch.randint(9, 17, (6,), generator=random)
    memories = torch.stack([torch.randperm(6, generator=random)[:3] for _ in range(4)])[:, None]
    return Batch(torch.randint(0, 64, (6, 16), generator=random), lengths, ids, labels, memories, torch.zeros_like(ids))


def test_a_recipe_is_parts_bits_and_axes_of_a_token_or_faiss() -> None:
    assert recipe("tokens:52x8", HEADS) == (52, 8, 0)
    assert recipe("tokens:52x8x4", HEADS) == (52, 8, 4)
    assert recipe("OPQ16_64,PQ16x8", HEADS) is None
    for factory in ("tokens:", "tokens:25", "tokens:0x8", "tokens:4x17", "tokens:4x8x0", "tokens:4x8x"):
        with pytest.raises(InvalidInput, match="tokens:PARTSxBITS"):
            recipe(factory, HEADS)
    with pytest.raises(InvalidInput, match="different tokens"):
        recipe("tokens:52x8", tiny_config().memory)


class Writer:
    """Writes memories in which every number is the reference's own. It is its own tokenizer."""

    @property
    def tokenizer(self) -> "Writer":
        return self

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[0] * (1 + int(text) % 16) for text in texts]

    def write(self, references: Sequence[str]) -> list[ExplicitMemory]:
        made = []
        for text in references:
            tokens = 1 + int(text) % 16
            keys = np.zeros((32, 8), np.float32)
            keys[HEADS.valid_rows(tokens)] = float(text)
            made.append(ExplicitMemory(keys, -keys, tokens))
        return made


@pytest.mark.parametrize(
    ("factory", "points", "says"),
    [
        ("tokens:4x10", 40000, "1,024 vectors .* not 408: write more references"),
        ("tokens:4x8", 200, "256 vectors .* not 200: give --points 256"),
        ("PQ2x11", 40000, "2,048 vectors .* not 1,632: write more references"),
    ],
)
def test_too_few_vectors_are_refused_before_a_memory_is_written(factory: str, points: int, says: str) -> None:
    texts = [str(n % 16) for n in range(53)]  # 48 of them to fit to, of 408 tokens
    unwritten: Any = SimpleNamespace(config=CONFIG, tokenizer=Writer(), writer=None)
    with pytest.raises(InvalidInput, match=says):
        fit(unwritten, None, texts, factory, 0, Progress(), points=points)  # type: ignore[arg-type]


def test_a_tokens_vectors_lie_side_by_side_in_the_order_of_its_code() -> None:
    texts = [str(n) for n in range(16)]
    found = written_vectors(Writer(), HEADS, texts, 4)  # type: ignore[arg-type]
    assert found.shape == (sum(range(1, 17)), 32)
    np.testing.assert_array_equal(np.bincount(found[:, 0].astype(int)), np.arange(1, 17))
    np.testing.assert_array_equal(found[:, :8], -found[:, 8:16])
    some = written_vectors(Writer(), HEADS, texts, 4, points=50)  # type: ignore[arg-type]
    kept = np.sort(np.random.default_rng(0).permutation(len(found))[:50])
    np.testing.assert_array_equal(some, found[kept])
    single = written_vectors(Writer(), HEADS, texts[:3], 1, points=20)  # type: ignore[arg-type]
    assert single.shape == (20, 8)


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


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"plain_layers": (0, 2)}], ids=str)
def test_a_keys_metric_is_of_the_queries_that_meet_it(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_config(memory=HEADS, **changes))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.mul_(torch.linspace(0.2, 3, len(parameter)))
    met: list[torch.Tensor] = []  # of a layer's only memory head, one layer after the other: [4 rows, 2 queries, 15, 8]
    attend = Attention._with_memory

    def attending(self: Attention, q: torch.Tensor, *others: Any) -> torch.Tensor:
        met.append(q[:, 0])
        return attend(self, q, *others)

    monkeypatch.setattr(Attention, "_with_memory", attending)
    metrics = reading_metrics(model, iter([batch()]), PREFIX)
    for queries, metric in zip(met, metrics[::2], strict=True):
        own = queries[:, :, -6:-1].reshape(-1, 8).double()  # which predict the last five tokens
        moment = (own.T @ own).numpy()
        np.testing.assert_allclose(metric / np.trace(metric), moment / np.trace(moment), atol=1e-6)
