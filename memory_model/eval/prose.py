"""How well a model still predicts ordinary prose, without memory: what tuning must not cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from memory_model.chat import text_start
from memory_model.errors import InvalidInput
from memory_model.models.load import LoadedModel

WINDOW_TOKENS = 512


def windows(
    texts: Sequence[str], encode: Callable[[str], list[int]], window: int = WINDOW_TOKENS,
    limit: int | None = None,
) -> list[list[int]]:  # fmt: skip
    """Token windows of exactly `window` tokens, the texts one after the other, two line breaks between them.

    What is left at the end is dropped. Raises InvalidInput when the texts do not fill one window.
    """
    between = encode("\n\n")
    result: list[list[int]] = []
    tokens: list[int] = []
    for text in texts:
        tokens += [*between, *encode(text)] if tokens else encode(text)
        while len(tokens) >= window:
            result.append(tokens[:window])
            tokens = tokens[window:]
        if limit is not None and len(result) >= limit:
            return result[:limit]
    if not result:
        raise InvalidInput(f"the prose has {len(tokens)} tokens, one window needs {window}: give more text")
    return result


@torch.inference_mode()
def perplexity(
    loaded: LoadedModel, token_windows: Sequence[Sequence[int]], prefix: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> float:  # fmt: skip
    """Exponential of the mean negative log likelihood of all tokens but the first of each window.

    prefix: what the model is used behind (the modified BOS, or a plain BOS); text follows where text stands
    when memories are read, after the interval of reference positions. One window at a time: the logits of
    512 tokens over a vocabulary of 49,152 are 100 MB.
    """
    model, P = loaded.model, len(prefix)
    first = text_start(prefix, loaded.config.memory)
    total, count = 0.0, 0
    for window in token_windows:
        ids = torch.tensor([[*prefix, *window]])
        positions = torch.cat((torch.arange(P), torch.arange(first, first + len(window))))[None]
        hidden, _ = model.hidden(ids, positions)
        logits = model.head(hidden[0, P:-1]).float()
        total += float(F.cross_entropy(logits, torch.tensor(window[1:]), reduction="sum"))
        count += len(window) - 1
        if progress is not None:
            progress(1)
    return math.exp(total / count)
