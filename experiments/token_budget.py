"""Spend a fixed number of vectors on memory heads by what each head loses with fewer tokens.

Halving one head's tokens at a time and measuring the answers' loss gives each head a falling curve; tokens
are then taken where they cost least until the budget fits. The measured table, not the rule, is what counts:
`loss_of_table` says what the result is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from memory_model.config import MemoryConfig, MemoryHead
from memory_model.data.batches import Batch
from memory_model.nn.decoder import Decoder
from memory_model.train.head_ranking import loss_of_table

STEPS = (128, 96, 64, 32, 16, 0)


def steps_of(table: MemoryConfig) -> list[tuple[MemoryHead, int]]:
    """What is to be measured: each head of a budget with each number of tokens that is not more than it has."""
    return [(head, tokens) for head in table.heads for tokens in STEPS if tokens <= head.tokens]


def token_losses(
    model: Decoder, batches: Sequence[Batch], prefix: Sequence[int], steps: Iterable[tuple[MemoryHead, int]]
) -> Iterator[tuple[MemoryHead, int, float]]:
    """(head, tokens, loss of the answers with it at so many tokens and the rest whole), as soon as measured."""
    table = model.config.memory
    known: dict[MemoryConfig, float] = {}  # every head's curve begins at the same whole budget
    for head, tokens in steps:
        changed = with_tokens(table, head, tokens)
        if changed not in known:
            known[changed] = loss_of_table(model, changed, batches, prefix)
        yield head, tokens, known[changed]


def with_tokens(table: MemoryConfig, head: MemoryHead, tokens: int) -> MemoryConfig:
    """The budget with one head at another number of tokens; 0 leaves it out."""
    others = tuple(h for h in table.heads if (h.layer, h.head) != (head.layer, head.head))
    own = (replace(head, tokens=tokens),) if tokens else ()
    return replace(table, heads=others + own)


def allocate(curves: Mapping[MemoryHead, Mapping[int, float]], vectors: int) -> tuple[MemoryHead, ...]:
    """Heads with tokens, at most `vectors` vectors together: the cheapest steps down are taken first.

    A step's price is the loss it adds for each token it saves. Curves are made monotone first, since a
    measured loss may fall by chance when tokens are taken away.
    """
    tokens = {head: max(curve) for head, curve in curves.items()}
    falling = {}
    for head, curve in curves.items():
        worst, monotone = float("-inf"), {}
        for step in sorted(curve, reverse=True):
            worst = max(worst, curve[step])
            monotone[step] = worst
        falling[head] = monotone
    while 2 * sum(tokens.values()) > vectors:
        prices = {}
        for head, now in tokens.items():
            for step, loss in falling[head].items():
                if step < now:
                    prices[head, step] = (loss - falling[head][now]) / (now - step)
        (head, step) = min(prices, key=lambda move: (prices[move], -move[1]))
        tokens[head] = step
    return tuple(replace(head, tokens=count) for head, count in sorted(tokens.items()) if count)
