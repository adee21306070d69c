"""What the training commands make of their options: a budget of the model that is tuned."""

from __future__ import annotations

import pytest

from memory_model.cli.training_data import parse_budget
from memory_model.errors import InvalidInput
from tests.memory_model.tiny import tiny_config


def test_all_heads_are_those_of_the_model_that_is_tuned() -> None:
    config = tiny_config()
    heads = parse_budget("all", config).heads
    assert [(h.layer, h.head) for h in heads] == [
        (i, k) for i in range(config.layers) for k in range(config.kv_heads)
    ]


def test_heads_are_read_from_their_numbers_and_anything_else_is_refused() -> None:
    assert [(h.layer, h.head, h.tokens) for h in parse_budget("2.1:16,0.2:8", tiny_config()).heads] == [
        (0, 2, 8), (2, 1, 16),
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match=r"layer\.head:tokens"):
        parse_budget("2.1", tiny_config())
