"""What conversations ask, when they refuse, and that every source resumes exactly."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from memory3.errors import InvalidInput
from memory_model.data.batches import IGNORE, Batch, BatchSource, Mixture
from memory_model.data.conversations import FactConversations, PassageConversations, Sizes, references_of
from memory_model.data.passages import Passage, PassageQuestion
from memory_model.data.running_text import KeepingBatches
from tests.edge_client.tiny_bundle import tiny_loaded

FACTS = "Area - total: {0} km\nCapital - name: C{0}\nClimate: dry {0}"
DOCUMENTS = [{"key": f"k{n}", "title": f"L{n}", "text": FACTS.format(n)} for n in range(8)]
PASSAGES = [
    Passage("s", f"p{n}", f"Town {n}", f"Town {n} is a small place. It was founded in 18{n:02} by Anna Berg of Oslo.")
    for n in range(12)
]
SIZES = Sizes(written=6, conversations=6, longest=32)


def facts(sizes: Sizes = SIZES, whole: float = 0.7) -> FactConversations:
    references = references_of(DOCUMENTS, tiny_loaded().tokenizer, limit=32)
    return FactConversations(references, tiny_loaded().chat, 1, sizes, whole)


def people(sizes: Sizes = SIZES) -> PassageConversations:
    rows = [
        PassageQuestion(f"when was town {n} founded", f"18{n:02}", f"Town {n}: 18{n:02}.", "s", f"p{n}")
        for n in range(8)
    ]
    return PassageConversations(rows, tiny_loaded().chat, 1, sizes)


def keeping() -> KeepingBatches:
    source = KeepingBatches(PASSAGES, tiny_loaded().chat, 1)
    source.rows, source.window, source.kept = 2, 24, 8
    return source


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
