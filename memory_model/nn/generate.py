"""Read texts with memories, answer greedily, score given answers: batches of the torch decoder, for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from memory3.runtime.answerability import AnswerabilityProbe
from memory3.text.chat import text_start
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.serving import BatchedDecoder
from memory_model.nn.writing import pad_ids


class FirstBias(NamedTuple):
    """What the logit of a token gets as first token of each answer: a number, and a probe's where there is one.

    memories: how many each reads.
    """

    token: int
    values: Sequence[float]
    memories: Sequence[int]
    probe: AnswerabilityProbe | None = None

    def added(self, logits: Tensor, engine: BatchedDecoder) -> Tensor:
        """Other logits [B, V]. engine: as `prefilled` left it."""
        bias = np.asarray(self.values, np.float32)
        if self.probe is not None:
            bias = bias + self.probe.biases(last_queries(engine), self.memories)
        logits = logits.clone()
        logits[:, self.token] += logits.new_tensor(bias)
        return logits


def read(
    model: Decoder, ids_BT: Tensor, prefix: Sequence[int], memory: MemoryBatch | None, chunks_BT: Tensor | None
) -> Tensor:
    """Normed hidden states [B, T, D] of texts behind the prefix, each token reading its chunk's memories."""
    B, T = ids_BT.shape
    P, device = len(prefix), ids_BT.device
    ids = torch.cat((torch.tensor(prefix, dtype=torch.long, device=device).expand(B, P), ids_BT), dim=1)
    first = text_start(prefix, model.config.memory)
    positions = torch.cat((torch.arange(P), torch.arange(first, first + T))).to(device)[None]
    if memory is None or chunks_BT is None:
        return model.hidden(ids, positions)[:, P:]
    chunks = torch.cat((torch.full((B, P), -1, device=device), chunks_BT), dim=1)
    return model.hidden(ids, positions, memory, chunks)[:, P:]


@torch.inference_mode()
def greedy_and_nll(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    prefix: Sequence[int],
    memory: MemoryBatch | None,
    stop_ids: Sequence[int],
    longest: int = 48,
    first_bias: FirstBias | None = None,
) -> tuple[list[list[int]], list[float]]:
    """Greedy answers without the stop token, and nats a token of the given ones, from prompts that are read once.

    memory: leading dimensions [B, 1, m], or None.
    """
    most, records = max(longest, *map(len, answers)), first_bias is not None and first_bias.probe is not None
    engine, logits = prefilled(model, prompts, prefix, memory, most, records)
    first, starts = logits.log_softmax(-1), engine.length.tolist()
    greedily = _continued(engine, logits, stop_ids, longest, first_bias)
    ids = pad_ids(answers)[0]
    # The rows of the greedy answers are written again; what padding writes is read by padding only.
    later = [first]
    if ids.shape[1] > 1:
        read_on = engine.run(0, ids[:, :-1].tolist(), starts, every=True)
        later += read_on.unflatten(0, (len(answers), -1)).log_softmax(-1).unbind(1)
    found = torch.stack([step.cpu().gather(1, ids[:, n : n + 1])[:, 0] for n, step in enumerate(later)], 1)
    return greedily, [-float(found[row, : len(answer)].mean()) for row, answer in enumerate(answers)]


def _continued(
    engine: BatchedDecoder, logits: Tensor, stop_ids: Sequence[int], longest: int, first_bias: FirstBias | None
) -> list[list[int]]:
    """Greedy answers of all sequences of an engine, from the logits behind their prompts."""
    if first_bias is not None:
        logits = first_bias.added(logits, engine)
    answers: list[list[int]] = [[] for _ in logits]
    tokens = [0] * len(logits)
    for _ in range(longest):
        likeliest = logits.argmax(-1).tolist()
        tokens = [-1 if last < 0 or new in stop_ids else new for last, new in zip(tokens, likeliest, strict=True)]
        for answer, token in zip(answers, tokens, strict=True):
            answer += [token] if token >= 0 else []
        if max(tokens) < 0:
            break
        logits = engine.step(tokens)
    return answers


@torch.inference_mode()
def prefilled(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    prefix: Sequence[int],
    memory: MemoryBatch | None,
    more: int = 0,
    records: bool = False,
) -> tuple[BatchedDecoder, Tensor]:
    """A sequence for each prompt, with room for `more` tokens, and the logits [B, V] behind it.

    records: leave what `last_queries` takes.
    """
    everyone = list(range(len(prompts)))
    engine = BatchedDecoder(model, prefix, len(prompts), len(prefix) + max(map(len, prompts)) + more)
    if memory is not None:
        engine.inject(everyone, memory)
    return engine, engine.prefill(everyone, prompts, records)


def last_queries(engine: BatchedDecoder) -> np.ndarray:
    """Queries float32 [B, width] of the last tokens that `prefilled` read with `records`."""
    return np.asarray(torch.cat([layer[:, 0] for layer in engine.queries], dim=1).float().cpu().numpy())
