"""Random weights are a model's weights, made one by one; a bundle of them decodes."""

from __future__ import annotations

import numpy as np

from experiments.random_base import random_weight
from memory_model.config import weight_shapes
from tests.memory_model.tiny import tiny_model


def test_names_and_shapes_are_those_of_the_torch_model() -> None:
    model = tiny_model()
    found = {n: tuple(t.shape) for n, t in model.state_dict().items() if n != "lm_head.weight"}
    assert weight_shapes(model.config) == found


def test_numbers_follow_from_name_and_seed() -> None:
    first = random_weight("layers.0.mlp.up_proj.weight", (8, 4), 1)
    assert np.array_equal(first, random_weight("layers.0.mlp.up_proj.weight", (8, 4), 1))
    assert not np.array_equal(first, random_weight("layers.1.mlp.up_proj.weight", (8, 4), 1))
    assert not np.array_equal(first, random_weight("layers.0.mlp.up_proj.weight", (8, 4), 2))
