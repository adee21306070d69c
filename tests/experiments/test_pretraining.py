"""Random weights to start from, and held-out losses compared on the same sequences."""

from __future__ import annotations

import pytest

from experiments.pretraining import compared
from experiments.random_base import random_weight


@pytest.mark.parametrize("exponent", [-0.5, -0.8])
def test_the_deviation_of_random_weights_is_a_power_of_their_inputs(exponent: float) -> None:
    weight = random_weight("model.layers.0.mlp.up_proj.weight", (512, 256), exponent=exponent)
    assert weight.std() == pytest.approx(256**exponent, rel=0.02)
    assert (random_weight("model.norm.weight", (4,), exponent=exponent) == 1).all()


def test_losses_that_differ_between_sequences_are_compared_on_the_same_ones() -> None:
    without, hard = [1.0, 2.0, 3.0], [0.1, 0.2, 0.3]
    lower = [loss - gain for loss, gain in zip(without, hard, strict=True)]
    found = compared(
        {
            "continual-without": {"without": without, "with": [x + 0.5 for x in without]},
            "continual-switched": {"without": without, "with": lower},
        }
    )
    assert found["continual-switched"]["with"]["error"] > 0.5
    lowers = found["continual-switched"]["memory_lowers"]
    assert (lowers["difference"], lowers["n"]) == (0.2, 3)
    assert lowers["error"] == pytest.approx(0.1 / 3**0.5, abs=1e-4)
    assert found["continual-without"]["memory_lowers"]["difference"] == -0.5
    assert found["continual-without"]["switched_lower"] == lowers
    assert found["continual-switched"]["switched_lower"]["difference"] == 0
