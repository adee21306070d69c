"""The mean of adapters."""

from __future__ import annotations

import pytest
import torch

from experiments.mean_adapter import mean_of
from memory_model.errors import InvalidInput
from memory_model.nn.adapter import Adapter
from tests.memory_model.tiny import tiny_config


def test_the_mean_of_adapters_is_that_of_their_numbers_and_only_of_alike_ones() -> None:
    def made(value: float, rank: int = 2, base: str = "abc") -> Adapter:
        factors = {"layers.0.x": (torch.full((rank, 3), value), torch.full((4, rank), 2 * value))}
        return Adapter(factors, 1.0, tiny_config().memory, base, {"from": value})

    mean = mean_of([made(1.0), made(3.0)])
    a, b = mean.factors["layers.0.x"]
    assert (a == 2.0).all()
    assert (b == 4.0).all()
    assert mean.details == {"mean_of": [{"from": 1.0}, {"from": 3.0}]}
    for other in (made(1.0, rank=3), made(1.0, base="def")):
        with pytest.raises(InvalidInput, match="no mean"):
            mean_of([made(1.0), other])
