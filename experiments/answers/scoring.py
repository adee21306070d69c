"""Greedy answers, or how likely given ones are, of a batch of the torch decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.generate import greedy_and_nll, read
from memory_model.nn.writing import pad_ids


def greedy(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    prefix: Sequence[int],
    memory: MemoryBatch | None,
    stop_ids: Sequence[int],
    longest: int = 48,
) -> list[list[int]]:
    """Token ids of greedy answers, without the stop token. memory: leading dimensions [B, 1, m] or None."""
    given = [[0]] * len(prompts)  # any token: its likelihood follows from the prompt that is read anyway
    return greedy_and_nll(model, prompts, given, prefix, memory, stop_ids, longest)[0]


@torch.inference_mode()
def answer_nll(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    prefix: Sequence[int],
    memory: MemoryBatch | None,
) -> list[float]:
    """Mean negative log likelihood (nats a token) of each given answer after its prompt; neither is empty."""
    ids = pad_ids([[*p, *a] for p, a in zip(prompts, answers, strict=True)])[0].to(model.embed_tokens.weight.device)
    hidden = read(model, ids, prefix, memory, torch.zeros_like(ids))
    found = []
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        states = hidden[row, len(prompt) - 1 : len(prompt) + len(answer) - 1]
        right = torch.tensor(answer, device=ids.device)
        found.append(float(F.cross_entropy(model.head(states).float(), right)))
    return found
