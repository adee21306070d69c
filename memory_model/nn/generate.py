"""Greedy answers from the torch decoder, batched: for evaluation and as the oracle of the edge runtime.

The prefix, the prompt and every generated token are run with explicit positions; the batch is padded on
the left, so that all sequences end together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from memory_model.nn.model import Decoder, KeyValue, MemoryBatch


def text_positions(model: Decoder, prefix: Sequence[int], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Positions and mask base of left-padded `prefix + text` rows: positions [B, P + T], real bool [B, P + T]."""
    P, T = len(prefix), max(lengths)
    first = P + model.config.memory.reference_tokens
    positions = torch.zeros(len(lengths), P + T, dtype=torch.long)
    real = torch.ones(len(lengths), P + T, dtype=torch.bool)
    for row, length in enumerate(lengths):
        positions[row, :P] = torch.arange(P)
        positions[row, P + T - length :] = torch.arange(first, first + length)
        real[row, P : P + T - length] = False
    return positions, real


@torch.inference_mode()
def greedy(
    model: Decoder, prompts: Sequence[Sequence[int]], prefix: Sequence[int], memory: MemoryBatch | None,
    stop_ids: Sequence[int], longest: int = 48,
) -> list[list[int]]:  # fmt: skip
    """Token ids of greedy answers, without the stop token. memory: leading dimensions [B, 1, m] or None."""
    B, P = len(prompts), len(prefix)
    lengths = [len(p) for p in prompts]
    T = max(lengths)
    ids = torch.zeros(B, P + T, dtype=torch.long)
    ids[:, :P] = torch.tensor(prefix)
    for row, prompt in enumerate(prompts):
        ids[row, P + T - len(prompt) :] = torch.tensor(prompt)
    positions, real = text_positions(model, prefix, lengths)
    causal = torch.ones(P + T, P + T, dtype=torch.bool).tril()
    mask = causal & (real[:, None, :] | torch.eye(P + T, dtype=torch.bool))
    chunk = torch.where(torch.arange(P + T) < P, -1, 0).expand(B, -1)
    hidden, past = model.hidden(ids, positions, mask, None, memory, chunk if memory else None)
    answers: list[list[int]] = [[] for _ in range(B)]
    running = torch.ones(B, dtype=torch.bool)
    position = positions[:, -1:]
    stop = torch.tensor(list(stop_ids))
    for _ in range(longest):
        token = model.head(hidden[:, -1]).float().argmax(-1)
        running &= ~torch.isin(token, stop)
        for row in running.nonzero()[:, 0].tolist():
            answers[row].append(int(token[row]))
        if not running.any():
            break
        position = position + 1
        real = torch.cat((real, torch.ones(B, 1, dtype=torch.bool)), dim=1)
        own = torch.zeros(B, 1, dtype=torch.long) if memory else None
        caches: list[KeyValue] = past
        hidden, past = model.hidden(token[:, None], position, real[:, None], caches, memory, own)
    return answers


@torch.inference_mode()
def answer_nll(
    model: Decoder, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], prefix: Sequence[int],
    memory: MemoryBatch | None,
) -> list[float]:  # fmt: skip
    """Mean negative log likelihood (nats a token) of each given answer after its prompt."""
    B, P = len(prompts), len(prefix)
    rows = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
    lengths = [len(r) for r in rows]
    T = max(lengths)
    ids = torch.zeros(B, P + T, dtype=torch.long)
    ids[:, :P] = torch.tensor(prefix)
    for row, tokens in enumerate(rows):
        ids[row, P + T - len(tokens) :] = torch.tensor(tokens)
    positions, real = text_positions(model, prefix, lengths)
    mask = torch.ones(P + T, P + T, dtype=torch.bool).tril() & (
        real[:, None, :] | torch.eye(P + T, dtype=torch.bool)
    )
    chunk = torch.where(torch.arange(P + T) < P, -1, 0).expand(B, -1)
    hidden, _ = model.hidden(ids, positions, mask, None, memory, chunk if memory else None)
    result = []
    for row, answer in enumerate(answers):
        n = len(answer)
        scores = model.head(hidden[row, -n - 1 : -1]).float().log_softmax(-1)
        result.append(-float(scores.gather(1, torch.tensor(answer)[:, None]).mean()))
    return result
