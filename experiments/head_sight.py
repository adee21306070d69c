"""Find the heads that look far back, in a model that was never tuned (paper, remark on memory heads).

The reference stands as text in the prompt, other references between it and the question. One KV head at a
time is made short-sighted: it sees the last 100 tokens and the prefix, nothing farther. What the answers lose
says how much of the reading that head does. It needs no tuning, so it can choose the candidates that
`head_ranking` then measures with memories. What lies below a head's layer does not change, so heads are measured
layer by layer, upwards, and every pass begins where the head is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.config import MemoryHead
from memory_model.data.batches import Batch
from memory_model.errors import InvalidInput
from memory_model.nn.decoder import Decoder
from memory_model.train.head_ranking import HeadLoss


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


class _Pass:
    """One batch's teacher's view on its way through the layers: `x` [B, P + T, D] before layer `layer`."""

    def __init__(self, model: Decoder, batch: Batch, prefix: Sequence[int]) -> None:
        assert batch.teacher is not None
        self.model, self.teacher, self.layer = model, batch.teacher, 0
        B, T = self.teacher.ids.shape
        P, device = len(prefix), self.teacher.ids.device
        ids = torch.cat((torch.tensor(prefix, device=device).expand(B, P), self.teacher.ids), dim=1)
        first = P + model.config.memory.reference_tokens
        positions = torch.cat((torch.arange(P), torch.arange(first, first + T))).to(device)[None]
        self.x, self.prefix_tokens = model.embed_tokens(ids), P
        self.rotary = model.rotary(positions)
        self.mask = torch.ones(P + T, P + T, dtype=torch.bool, device=device).tril()[None]

    def _through(self, x_BTD: Tensor, layer: int) -> Tensor:
        block = self.model.blocks[layer]
        attended, _ = block.self_attn(block.input_layernorm(x_BTD), *self.rotary, self.mask, None, None, None)
        x_BTD = x_BTD + attended
        return cast(Tensor, x_BTD + block.mlp(block.post_attention_layernorm(x_BTD)))

    def move_to(self, layer: int) -> None:
        """Go up to a layer; lower ones cannot be measured any more."""
        with self._half():
            for between in range(self.layer, layer):
                self.x = self._through(self.x, between)
        self.layer = layer

    def loss(self) -> float:
        """Loss of the answers (nats a token) with the layers from here on as they are now."""
        x, (rows, columns) = self.x, self.teacher.places.T
        with self._half():
            for layer in range(self.layer, self.model.config.layers):
                x = self._through(x, layer)
            scores = self.model.head(self.model.norm(x)[rows, self.prefix_tokens + columns]).float()
        return float(F.cross_entropy(scores, self.teacher.ids[rows, columns + 1]))

    def _half(self) -> torch.autocast:
        return torch.autocast(self.teacher.ids.device.type, dtype=torch.bfloat16)


@torch.no_grad()
def loss_as_text(model: Decoder, batches: Sequence[Batch], prefix: Sequence[int]) -> float:
    """Loss of the answers (nats a token) in the teacher's view of the batches, see `check_taught`."""
    check_taught(batches)
    return sum(_Pass(model, batch, prefix).loss() for batch in batches) / len(batches)


@torch.no_grad()
def losses_by_sight(
    model: Decoder,
    batches: Sequence[Batch],
    prefix: Sequence[int],
    heads: Iterable[MemoryHead],
    reach: int = 100,
) -> Iterator[HeadLoss]:
    """For each of the heads, from the lowest layer up, the loss when it alone is short-sighted, as soon as measured."""
    check_taught(batches)
    passes = [_Pass(model, batch, prefix) for batch in batches]
    for head in sorted(heads):
        for one in passes:
            one.move_to(head.layer)
        with short_sighted(model, head.layer, head.head, reach, len(prefix)):
            loss = sum(one.loss() for one in passes) / len(passes)
        yield HeadLoss(head, loss)
