"""What happens to memories between writing and reading while a model is tuned: the codec, or noise in its place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from memory3.codec.codec import MemoryCodec
from memory3.codec.payload import vector_rows
from memory3.config import MemoryConfig
from memory_model.nn.decoder import MemoryBatch

Coding = Callable[[MemoryBatch], MemoryBatch]
"""What happens to memories between writing and reading."""


def with_codec_noise(memory: MemoryBatch, share: float) -> MemoryBatch:
    """Add Gaussian noise of `share` of the variance of each row of the budget.

    The variance of a row is taken over the written references and averaged over its dimensions.
    """
    if share <= 0:
        return memory

    def noisy(x_NMd: Tensor) -> Tensor:
        with torch.no_grad():
            valid = memory.valid[..., None].float()
            mean = (x_NMd * valid).sum(0) / valid.sum(0).clamp_min(1)
            spread = (((x_NMd - mean) * valid).square().sum(0) / valid.sum(0).clamp_min(1)).mean(-1, keepdim=True)
            noise = torch.randn_like(x_NMd, dtype=torch.float32) * (spread * share).sqrt() * valid
        return x_NMd + noise.to(x_NMd.dtype)

    return MemoryBatch(noisy(memory.keys), noisy(memory.values), memory.valid)


@torch.no_grad()
def through_codec(memory: MemoryBatch, table: MemoryConfig, codec: MemoryCodec) -> MemoryBatch:
    """Memories [N, budget, d] as readers get them, so that both sides adapt to the codec's errors."""
    sides = torch.cat((memory.keys, memory.values), dim=1).float().cpu().numpy()
    longest = max(range(len(table.heads)), key=lambda n: table.heads[n].tokens)
    first = table.offsets[longest]
    tokens = memory.valid[:, first : first + table.heads[longest].tokens].sum(1).tolist()
    rows = [vector_rows(table, count, codec.together) for count in tokens]
    vectors = np.concatenate([own[kept_rows] for own, kept_rows in zip(sides, rows, strict=True)])
    codes = codec.encode(vectors.reshape(-1, codec.together * codec.head_dim))
    read = codec.decode(codes).reshape(-1, codec.head_dim)
    for own, kept_rows, coded in zip(sides, rows, np.split(read, np.cumsum([len(r) for r in rows])[:-1]), strict=True):
        own[kept_rows] = coded
    keys, values = torch.from_numpy(sides).to(memory.keys).split(table.budget, dim=1)
    return MemoryBatch(keys, values, memory.valid)
