"""The mean of adapters, as the recipes take it between stages."""

from dataclasses import replace

import pytest
import torch

from experiments.training.mean_adapter import mean_of
from memory3.config import MemoryConfig, MemoryHead
from memory3.errors import InvalidInput
from memory_model.nn.adapter import Adapter

FEW = MemoryConfig((MemoryHead(0, 0, 32),), reference_tokens=32, chunk_tokens=16)
MORE = replace(FEW, heads=(MemoryHead(0, 0, 32), MemoryHead(1, 1, 32)))


def adapter(value: float, memory: MemoryConfig, base: str = "a" * 64) -> Adapter:
    factors = {"layers.0.mlp.down_proj": (torch.full((2, 8), float(value)), torch.full((4, 2), 2.0 * value))}
    return Adapter(factors, 1.0, memory, base, {"steps": value})


def test_the_mean_has_the_budget_of_the_later_stage() -> None:
    mean = mean_of([adapter(1, FEW), adapter(3, MORE)])
    down, up = mean.factors["layers.0.mlp.down_proj"]
    assert torch.equal(down, torch.full((2, 8), 2.0))
    assert torch.equal(up, torch.full((4, 2), 4.0))
    assert mean.memory == MORE
    assert mean.details == {"mean_of": [{"steps": 1}, {"steps": 3}]}


def test_adapters_of_different_bases_have_no_mean() -> None:
    with pytest.raises(InvalidInput, match="different bases"):
        mean_of([adapter(1, FEW), adapter(3, FEW, base="b" * 64)])
