"""Heads are ranked by what is lost without them, and chosen one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from memory_model.config import MemoryConfig, MemoryHead
from memory_model.errors import CorruptFile
from memory_model.train.head_ranking import HeadRuler, Ranking, rank
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
    found = Ranking("m", 1)
    steps = sum(1 for _ in rank(ruler(), found, select=4))
    changed = [name for name, loss in found.losses.items() if abs(loss - found.loss_whole) > 1e-4]
    assert changed == ["2.1"]
    assert sorted(found.chosen) == sorted(found.losses)
    assert list(found.chosen.values())[-1] == pytest.approx(found.loss_whole, abs=1e-3), "nothing is missing"
    assert steps == len(found.losses) + len(found.chosen)


def test_an_interrupted_ranking_goes_on_where_it_was(tmp_path: Path) -> None:
    path, whole = tmp_path / "heads.json", Ranking("m", 1)
    measure = ruler()
    for _ in rank(measure, whole, select=2):
        pass
    for _ in range(20):
        found = Ranking.begun(path, "m", 1)
        for _ in rank(measure, found, select=2):
            found.save(path)
            break
        else:
            break
    assert found == whole
    assert Ranking.begun(path, "another", 1).losses == {}
    path.write_text("[]")
    with pytest.raises(CorruptFile, match="rank-heads"):
        Ranking.begun(path, "m", 1)
