"""What conversations ask, when they refuse, and that every source resumes exactly."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from memory3.errors import InvalidInput
from memory_model.data.batches import IGNORE, Batch, BatchSource, Mixture
from tests.memory_model.data.small_sources import SIZES, facts, keeping, people


def same(a: Batch, b: Batch) -> bool:
    return a.task == b.task and torch.equal(a.ids, b.ids) and torch.equal(a.memories, b.memories)


@pytest.mark.parametrize("make", [facts, people, keeping])
def test_a_source_goes_on_exactly_from_its_state(make: Callable[[], BatchSource]) -> None:
    source = make()
    source.next()
    state = source.state()
    expected = [source.next() for _ in range(3)]
    again = make()
    again.restore(state)
    assert all(same(again.next(), batch) for batch in expected)


def test_a_memory_that_is_read_holds_every_answer() -> None:
    maker = facts(replace(SIZES, as_text=0.0), whole=1.0)
    decode = maker.chat.tokenizer.decode
    for _ in range(10):
        batch = maker.next()
        for labels, read_slots in zip(batch.labels, batch.memories[:, 0].tolist(), strict=True):
            texts = "\n".join(decode(batch.reference_ids[m].tolist()) for m in read_slots if m >= 0)
            for answer in decode(labels[labels != IGNORE].tolist(), skip_special=False).split("<|im_end|>")[:-1]:
                assert answer in texts


def test_a_mixture_draws_by_weight_and_refuses_another_ones_state() -> None:
    sources: dict[str, tuple[float, BatchSource]] = {"facts": (3.0, facts()), "keeping": (1.0, keeping())}
    mixed = Mixture(sources, 0)
    assert 20 <= [mixed.next().task for _ in range(40)].count("facts") <= 38
    with pytest.raises(InvalidInput, match="mixed"):
        Mixture({"facts": (1.0, facts())}, 0).restore(mixed.state())
    with pytest.raises(InvalidInput, match="weight above 0"):
        Mixture({"facts": (0.0, facts())}, 0)
