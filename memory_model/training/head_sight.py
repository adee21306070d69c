"""Find the heads that look far back, in a model that was never tuned (paper, remark on memory heads).

The reference stands as text in the prompt, other references between it and the question. One KV head at a
time is made short-sighted: it sees the last 100 tokens and the prefix, nothing farther. What the answers lose
says how much of the reading that head does. It needs no tuning, so it can choose the candidates that
`head_ranking` then measures with memories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.config import MemoryHead
from memory_model.errors import InvalidInput
from memory_model.nn.model import Decoder
from memory_model.training.adapt import read
from memory_model.training.batches import Batch
from memory_model.training.head_ranking import HeadLoss


@contextmanager
def short_sighted(model: Decoder, layer: int, head: int, reach: int, prefix_tokens: int) -> Iterator[None]:
    """For the time of a `with`, KV head `head` of `layer` sees the last `reach` tokens and the prefix only.

    Works for a pass without cache and without memory, as tuning makes it.
    """
    attention = model.blocks[layer].self_attn
    group, heads = model.config.group, model.config.query_heads

    def plain(q: Tensor, k: Tensor, v: Tensor, mask_BTS: Tensor) -> Tensor:
        T, S = q.shape[2], k.shape[2]
        column = torch.arange(S, device=q.device)
        near = (torch.arange(T, device=q.device)[:, None] - column < reach) | (column < prefix_tokens)
        own = torch.zeros(heads, dtype=torch.bool, device=q.device)
        own[head * group : (head + 1) * group] = True
        mask = mask_BTS[:, None] & (near | ~own[:, None, None])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    attention._plain = plain  # type: ignore[method-assign]
    try:
        yield
    finally:
        del attention._plain


def check_taught(batches: Sequence[Batch]) -> None:
    """Raise InvalidInput when a batch has no teacher's view, the asked references as text."""
    if any(batch.teacher is None for batch in batches):
        raise InvalidInput("heads are ranked by sight on conversations that have a teacher's view")


@torch.no_grad()
def loss_as_text(model: Decoder, batches: Sequence[Batch], prefix: Sequence[int]) -> float:
    """Loss of the answers (nats a token) in the teacher's view of the batches, see `check_taught`."""
    check_taught(batches)
    total = 0.0
    for batch in batches:
        teacher = batch.teacher
        assert teacher is not None
        with torch.autocast(teacher.ids.device.type, dtype=torch.bfloat16):
            hidden = read(model, teacher.ids, prefix, None, None)
            rows, columns = teacher.places[:, 0], teacher.places[:, 1]
            scores = model.head(hidden[rows, columns]).float()
        total += float(F.cross_entropy(scores, teacher.ids[rows, columns + 1]))
    return total / len(batches)


def losses_by_sight(
    model: Decoder,
    batches: Sequence[Batch],
    prefix: Sequence[int],
    heads: Iterable[MemoryHead],
    reach: int = 100,
) -> Iterator[HeadLoss]:
    """For each of the heads the loss when it alone is short-sighted, as soon as it is measured."""
    for head in heads:
        with short_sighted(model, head.layer, head.head, reach, len(prefix)):
            loss = loss_as_text(model, batches, prefix)
        yield HeadLoss(head, loss)
