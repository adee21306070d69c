"""Heads are ranked by what is lost without them, and chosen one by one."""

import pytest
import torch

from memory_model.config import MemoryConfig, MemoryHead
from memory_model.train.head_ranking import HeadRuler, rank
from tests.edge_client.tiny_bundle import tiny_config, tiny_loaded
from tests.memory_model.data.test_conversations import facts
from tests.memory_model.tiny import PREFIX

READER = MemoryHead(2, 1, 32)


def ruler() -> HeadRuler:
    """Of four memory heads; every head's output but the reader's is cut off."""
    heads = tuple(MemoryHead(layer, head, 32) for layer in (0, 2) for head in (0, 1))
    config = tiny_config().with_memory(MemoryConfig(heads, reference_tokens=32, chunk_tokens=16))
    model = tiny_loaded(config=config).model
    width = config.group * config.head_dim
    with torch.no_grad():
        for layer in range(config.layers):
            for head in range(config.kv_heads):
                if (layer, head) != (READER.layer, READER.head):
                    model.blocks[layer].self_attn.o_proj.weight[:, head * width : (head + 1) * width] = 0
    return HeadRuler(model, [facts().next()], PREFIX)


def test_ranking_finds_the_only_head_that_can_read() -> None:
    steps: list[None] = []
    found = rank(ruler(), 4, lambda: steps.append(None))
    changed = [name for name, loss in found.losses.items() if abs(loss - found.loss_whole) > 1e-4]
    assert changed == ["2.1"]
    assert sorted(found.chosen) == sorted(found.losses)
    assert list(found.chosen.values())[-1] == pytest.approx(found.loss_whole, abs=1e-3), "nothing is missing"
    assert len(steps) == len(found.losses) + len(found.chosen)
