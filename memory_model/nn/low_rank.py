"""A linear layer with a trainable product of two thin matrices next to its frozen weight (LoRA)."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_model.nn import fused


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a trainable product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        self.enabled = True
        self.start: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """(W + (alpha / rank) b a) x; W x while switched off."""
        if not self.enabled:
            return cast(Tensor, self.base(x))
        return fused.low_rank_linear(x, self.base.weight, self.base.bias, self.a, self.b, self.scale)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """`forward` of silu(gate) * up, of which the backward pass keeps gate and up only."""
        if not self.enabled:
            return cast(Tensor, self.base(F.silu(gate) * up))
        return fused.gated_low_rank(gate, up, self.base.weight, self.base.bias, self.a, self.b, self.scale)
