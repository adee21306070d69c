"""Heads are ranked by how far they look, and tokens are spent where they are read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from experiments.budget import budgets
from experiments.head_sight import loss_as_text, losses_by_sight, short_sighted
from experiments.token_budget import allocate, steps_of, token_losses, with_tokens
from memory_model.config import MemoryConfig, MemoryHead, uniform_budget
from memory_model.data.conversations import Sizes
from memory_model.errors import InvalidInput
from memory_model.eval.targets import PAPER_BYTES
from memory_model.train.tuner import read
from tests.edge_client.tiny_bundle import tiny_config, tiny_loaded
from tests.memory_model.test_conversations import facts
from tests.memory_model.tiny import PREFIX, tiny_model

TAUGHT = Sizes(written=6, conversations=3, as_text=0.0, unanswerable=0.0, taught=1.0)


def test_a_short_sighted_head_sees_near_tokens_and_the_prefix_and_no_more() -> None:
    model = tiny_model()
    ids = torch.randint(5, 60, (1, 24))
    positions = torch.arange(24)[None]
    far, near = ids.clone(), ids.clone()
    far[0, 4] = (ids[0, 4] + 1) % 60  # behind the reach of the last token
    with torch.no_grad():
        for layer in range(model.config.layers):
            for other in range(model.config.kv_heads):
                width = model.config.group * model.config.head_dim
                if (layer, other) != (1, 0):
                    model.blocks[layer].self_attn.o_proj.weight[:, other * width : (other + 1) * width] = 0
        whole = model.hidden(ids, positions)[0][0, -1]
        assert not torch.allclose(whole, model.hidden(far, positions)[0][0, -1])
        with short_sighted(model, 1, 0, reach=8, prefix_tokens=2):
            blind = model.hidden(ids, positions)[0][0, -1]
            assert torch.allclose(blind, model.hidden(far, positions)[0][0, -1])
            near[0, 20] = (ids[0, 20] + 1) % 60
            assert not torch.allclose(blind, model.hidden(near, positions)[0][0, -1])
            near = ids.clone()
            near[0, 1] = (ids[0, 1] + 1) % 60
            assert not torch.allclose(blind, model.hidden(near, positions)[0][0, -1]), "the prefix is seen"
        assert torch.allclose(whole, model.hidden(ids, positions)[0][0, -1])


def test_the_only_head_with_an_output_is_the_only_one_that_can_lose() -> None:
    model = tiny_loaded().model
    config = model.config
    width = config.group * config.head_dim
    with torch.no_grad():
        for layer in range(config.layers):
            for head in range(config.kv_heads):
                if (layer, head) != (1, 1):
                    model.blocks[layer].self_attn.o_proj.weight[:, head * width : (head + 1) * width] = 0
    batch = facts(TAUGHT).next()
    heads = [MemoryHead(i, k, 32) for i in range(config.layers) for k in range(config.kv_heads)]
    whole = loss_as_text(model, [batch], PREFIX)
    ranked = list(losses_by_sight(model, [batch], PREFIX, heads, reach=4))
    assert [e.head for e in ranked] == heads
    changed = [(e.head.layer, e.head.head) for e in ranked if abs(e.loss - whole) > 1e-4]
    assert changed == [(1, 1)]
    with pytest.raises(InvalidInput, match="teacher"):
        loss_as_text(model, [facts(Sizes(written=6, as_text=1.0)).next()], PREFIX)


def test_a_pass_that_begins_at_a_layer_loses_what_a_whole_pass_loses() -> None:
    model = tiny_loaded().model
    batch = facts(TAUGHT).next()
    teacher = batch.teacher
    assert teacher is not None
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        rows, columns = teacher.places.T
        scores = model.head(read(model, teacher.ids, PREFIX, None, None)[rows, columns]).float()
    whole = float(F.cross_entropy(scores, teacher.ids[rows, columns + 1]))
    assert loss_as_text(model, [batch], PREFIX) == pytest.approx(whole, abs=1e-5)
    far = 10_000  # a head that sees so far sees everything
    top = MemoryHead(model.config.layers - 1, 0, 32)
    for entry in losses_by_sight(model, [batch], PREFIX, [top, MemoryHead(0, 1, 32)], reach=far):
        assert entry.loss == pytest.approx(whole, abs=2e-3)


def test_larger_budgets_have_one_head_more_each_up_to_the_papers_bytes() -> None:
    config = tiny_config()
    first, second = (h for h in uniform_budget(config.layers, config.kv_heads, 32) if h.layer == 2)
    whole = config.with_memory(MemoryConfig((MemoryHead(0, 0, 32),), 32, 16))
    labels = [b.label for b in budgets(whole, [second, first], vector_bytes=1.0)]
    assert labels[-2:] == ["2 heads: the shipped and 2.1", "3 heads: the shipped and 2.1, 2.0"]
    few = [b.label for b in budgets(whole, [second, first], vector_bytes=PAPER_BYTES / 128)]
    assert few[-1] == "2 heads: the shipped and 2.1"


def test_tokens_are_taken_where_they_cost_least() -> None:
    reads, idle = MemoryHead(1, 0, 128), MemoryHead(2, 1, 128)
    curves = {
        reads: {128: 1.0, 64: 2.0, 0: 5.0},
        idle: {128: 1.0, 64: 0.99, 0: 1.01},  # falls by chance
    }
    assert allocate(curves, 512) == (reads, idle)
    assert allocate(curves, 300) == (reads,)
    assert allocate(curves, 384) == (reads, MemoryHead(2, 1, 64))
    assert allocate(curves, 128) == (MemoryHead(1, 0, 64),)


def test_the_curves_of_a_budget_begin_at_the_whole_of_it() -> None:
    heads = (MemoryHead(0, 0, 32), MemoryHead(2, 1, 32))
    model = tiny_loaded(config=tiny_config().with_memory(MemoryConfig(heads, 32, 16))).model
    todo = steps_of(model.config.memory)
    assert todo == [(head, tokens) for head in heads for tokens in (32, 16, 0)]
    losses = {(h, n): loss for h, n, loss in token_losses(model, [facts(TAUGHT).next()], PREFIX, todo)}
    assert list(losses) == todo
    assert losses[heads[0], 32] == pytest.approx(losses[heads[1], 32], abs=1e-4), "both are the whole budget"
    assert with_tokens(model.config.memory, heads[0], 0).heads == heads[1:]
