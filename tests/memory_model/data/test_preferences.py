"""Pairs for DPO: what wins over what, with memories that are read, and that the loss is the formula's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from memory_model.data.batches import IGNORE
from memory_model.data.conversations import REFUSAL
from memory_model.data.preferences import Preferences
from memory_model.nn.adapter import collect, load_start
from memory_model.nn.decoder import Decoder
from memory_model.nn.generate import read
from memory_model.nn.writing import write_memories
from memory_model.train.losses import batch_gradients
from memory_model.train.tuner import Tuner, TuningPlan
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.memory_model.data import test_alike as alike
from tests.memory_model.tiny import PREFIX
from tests.memory_model.train.test_losses import gradients, tuned

ROWS = [row | {"plausible": "" if row["answerable"] else f"B{row['question'][14:15]}"} for row in alike.ROWS]
UNREAD = {f"Who built mill {n} of A{a}?": "Napoleon" for a in range(3) for n in range(5)}


def preferences(monkeypatch: pytest.MonkeyPatch) -> Preferences:
    monkeypatch.setattr(alike, "ROWS", ROWS)
    return Preferences(alike.hard(), alike.articles(), UNREAD, 3)


def test_every_pair_prefers_what_the_references_say(monkeypatch: pytest.MonkeyPatch) -> None:
    source, kinds = preferences(monkeypatch), set()
    for _ in range(20):
        written = source.draw()
        for pair in source.pairs(written):
            texts = [written[n].text for n in pair.read]
            assert pair.chosen != pair.rejected
            if pair.chosen == REFUSAL:
                kinds.add("refusal")
                assert any(pair.rejected in text for text in texts)
                continue
            right = [text for text in texts if pair.chosen in text]
            assert right
            kinds.add({REFUSAL: "answered", "Napoleon": "without memory"}.get(pair.rejected, "another subject"))
            if pair.rejected not in (REFUSAL, "Napoleon"):
                assert any(pair.rejected in text for text in texts if text not in right)
    assert kinds == {"refusal", "answered", "without memory", "another subject"}


def test_pairs_are_neighbouring_rows_and_go_on_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = preferences(monkeypatch), preferences(monkeypatch)
    first.next()
    second.restore(first.state())
    batch = first.next()
    assert batch.preferences
    assert batch.ids.equal(second.next().ids)
    assert batch.memories[::2].equal(batch.memories[1::2])
    start = (batch.labels[0] != IGNORE).nonzero()[0, 0]
    assert batch.ids[0, :start].equal(batch.ids[1, :start])
    assert not batch.ids[0].equal(batch.ids[1])


def test_loss_and_gradient_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = preferences(monkeypatch).next()
    (model, parameters), beta = tuned(), 0.1
    load_start(model, collect(model, model.config.memory, "base", {}))
    model.float()

    def likelihoods(model: Decoder) -> torch.Tensor:
        memory = write_memories(model, batch.reference_ids, batch.reference_lengths, PREFIX).select(batch.memories)
        log_p = model.head(read(model, batch.ids, PREFIX, memory, batch.chunks))[:, :-1].float().log_softmax(-1)
        labels = batch.labels[:, 1:]
        return (log_p.gather(2, labels.clamp_min(0)[..., None])[..., 0] * (labels != IGNORE)).sum(1)

    with torch.no_grad():
        start = likelihoods(model)
        for parameter in parameters:
            parameter += 0.1 * torch.randn_like(parameter)
    gained = likelihoods(model) - start
    margin = gained[::2] - gained[1::2]
    loss = -F.logsigmoid(beta * margin).mean()
    (0.5 * loss).backward()
    expected = gradients(parameters)
    for parameter in parameters:
        parameter.grad = None
    done = batch_gradients(model, batch, PREFIX, weight=0.5, beta=beta)
    assert done.answers == pytest.approx(float(loss.detach()), rel=1e-5)
    assert done.margin == pytest.approx(float(margin.detach().mean()), rel=1e-4)
    assert float((gradients(parameters) - expected).norm() / expected.norm()) < 1e-4


def test_a_model_learns_to_prefer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TuningPlan(steps=12, learning_rate=2e-2, warmup=2, rank=4, first_layer=1, beta=0.1, cosine=True)
    start = collect(tuned()[0], tiny_loaded().config.memory, "base", {})
    source, steps = preferences(monkeypatch), []
    batch = source.next()
    monkeypatch.setattr(source, "next", lambda: batch)
    Tuner(tiny_loaded().model, PREFIX, source, plan, tmp_path, "base", start=start).run(steps.append)
    assert (steps[0].loss, steps[0].margin) == (pytest.approx(0.6931, abs=1e-3), pytest.approx(0, abs=1e-3))
    assert steps[-1].loss < 0.3
    assert [plan.rate(0), plan.rate(2), plan.rate(12)] == pytest.approx([1e-2, 2e-2, 0])
