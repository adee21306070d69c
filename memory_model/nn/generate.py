"""Greedy answers from the torch decoder, batched: for evaluation and as the oracle of the edge runtime.

The prefix, the prompt and every generated token are run with explicit positions; the batch is padded on
the left, so that all sequences end together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.chat import text_start
from memory_model.nn.decoder import Decoder, KeyValue, MemoryBatch


def _read(
    model: Decoder, prefix: Sequence[int], texts: Sequence[Sequence[int]], memory: MemoryBatch | None
) -> tuple[Tensor, list[KeyValue], Tensor, Tensor]:
    """Hidden states, caches, which tokens are real and positions [B, P + T] of rows `prefix + padding + text`.

    The text reads the memories, the prefix does not; padding is seen by nobody else.
    """
    B, P, T = len(texts), len(prefix), max(len(t) for t in texts)
    first = text_start(prefix, model.config.memory)
    ids, positions = torch.zeros(B, P + T, dtype=torch.long), torch.zeros(B, P + T, dtype=torch.long)
    real = torch.ones(B, P + T, dtype=torch.bool)
    ids[:, :P], positions[:, :P] = torch.tensor(prefix), torch.arange(P)
    for row, text in enumerate(texts):
        start = P + T - len(text)
        ids[row, start:] = torch.tensor(text)
        positions[row, start:] = torch.arange(first, first + len(text))
        real[row, P:start] = False
    # A padding token sees itself, because a row of the softmax that sees nothing is NaN.
    seen = real[:, None, :] | torch.eye(P + T, dtype=torch.bool)
    mask = torch.ones(P + T, P + T, dtype=torch.bool).tril() & seen
    chunk = torch.where(torch.arange(P + T) < P, -1, 0).expand(B, -1) if memory else None
    hidden, past = model.hidden(ids, positions, mask, None, memory, chunk)
    return hidden, past, real, positions


@torch.inference_mode()
def greedy(
    model: Decoder, prompts: Sequence[Sequence[int]], prefix: Sequence[int], memory: MemoryBatch | None,
    stop_ids: Sequence[int], longest: int = 48, first_bias: tuple[int, float] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Token ids of greedy answers, without the stop token.

    memory: leading dimensions [B, 1, m] or None. first_bias: a token, and what its logit gets as first token.
    """
    B = len(prompts)
    hidden, past, real, positions = _read(model, prefix, prompts, memory)
    position = positions[:, -1:]
    answers: list[list[int]] = [[] for _ in range(B)]
    running = torch.ones(B, dtype=torch.bool)
    stop = torch.tensor(list(stop_ids))
    own = torch.zeros(B, 1, dtype=torch.long) if memory else None
    for step in range(longest):
        logits = model.head(hidden[:, -1]).float()
        if step == 0 and first_bias is not None:
            logits[:, first_bias[0]] += first_bias[1]
        token = logits.argmax(-1)
        running &= ~torch.isin(token, stop)
        for row in running.nonzero()[:, 0].tolist():
            answers[row].append(int(token[row]))
        if not running.any():
            break
        position = position + 1
        real = torch.cat((real, torch.ones(B, 1, dtype=torch.bool)), dim=1)
        hidden, past = model.hidden(token[:, None], position, real[:, None], past, memory, own)
    return answers


@torch.inference_mode()
def first_logits(
    model: Decoder, prompts: Sequence[Sequence[int]], prefix: Sequence[int], memory: MemoryBatch | None
) -> Tensor:
    """Logits [B, V] float32 of each answer's first token."""
    hidden, *_ = _read(model, prefix, prompts, memory)
    return model.head(hidden[:, -1]).float()


@torch.inference_mode()
def answer_nll(
    model: Decoder, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], prefix: Sequence[int],
    memory: MemoryBatch | None,
) -> list[float]:  # fmt: skip
    """Mean negative log likelihood (nats a token) of each given answer after its prompt; neither is empty."""
    return [
        float(F.nll_loss(scores, given))
        for scores, given in answer_scores(model, prompts, answers, prefix, memory)
    ]


def answer_scores(
    model: Decoder, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], prefix: Sequence[int],
    memory: MemoryBatch | None,
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """For each answer the log probabilities [T, V] of every token at its places, and its own tokens [T]."""
    hidden, *_ = _read(model, prefix, [[*p, *a] for p, a in zip(prompts, answers, strict=True)], memory)
    for row, answer in enumerate(answers):
        yield model.head(hidden[row, -len(answer) - 1 : -1]).float().log_softmax(-1), torch.tensor(answer)
