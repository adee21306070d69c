"""Pretraining: gradients of every weight, two stages that learn and go on, and a folder that is a base."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memory3.config import parse_budget
from memory3.errors import InvalidInput
from memory_model.data.retrieved import RetrievedSequences
from memory_model.data.running_text import ContinualBatches
from memory_model.models.folder import open_checkpoint
from memory_model.nn.writing import write_memories
from memory_model.train.losses import batch_gradients, read_loss
from memory_model.train.pretrainer import Pretrainer, PretrainingPlan, pretrainer
from tests.memory_model.models.published import published
from tests.memory_model.train.plain import interrupted


@pytest.fixture(scope="module", params=["llama-3", "qwen2"])
def base(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """One with a head of its own, and one whose embedding is the head and that has biases."""
    folder = tmp_path_factory.mktemp("bases") / "base"
    published(folder, request.param)
    return folder


def data(tokens: int = 32) -> RetrievedSequences:
    """Text whose chunks repeat their reference, so that reading pays."""
    rng = np.random.default_rng(0)
    references = rng.integers(5, 90, (12, 16)).astype(np.int32)
    chosen = rng.integers(0, 12, (24, tokens // 16)).astype(np.int32)
    return RetrievedSequences(references[chosen].reshape(24, tokens), references, chosen, 16, 2)


def run(
    base: Path, out: Path, steps: int, *, warmup: bool, tokens: int = 32, heads: str = "paper", **plan: object
) -> Pretrainer:
    checkpoint = open_checkpoint(base)
    shape = checkpoint.config("tiny")
    fields = {"rows": 4, "stage": "warmup" if warmup else "continual"}
    made = PretrainingPlan(steps=steps, warmup=1, **{**fields, **plan})  # type: ignore[arg-type]
    return pretrainer(checkpoint, out, shape.with_memory(parse_budget(heads, shape)), data(tokens), made)


def test_every_weight_has_the_gradient_of_the_whole_loss(base: Path, tmp_path: Path) -> None:
    trainer = run(base, tmp_path / "run", 1, warmup=False)
    model, prefix = trainer.model, trainer.prefix
    batch = ContinualBatches(data(), 0, rows=4).next()
    batch_gradients(model, batch, prefix)
    found = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    memory = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
    read_loss(model, batch, prefix, memory.select(batch.memories)).backward()  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_two_stages_learn_and_resume_exactly_and_leave_a_base(base: Path, tmp_path: Path) -> None:
    losses: list[float] = []
    run(base, tmp_path / "warmup", 6, warmup=True, learning_rate=1e-2).run(lambda step: losses.append(step.loss))
    assert losses[-1] < losses[0]
    whole: list[float] = []
    run(tmp_path / "warmup", tmp_path / "whole", 4, warmup=False).run(lambda step: whole.append(step.loss))
    begun = run(tmp_path / "warmup", tmp_path / "cut", 4, warmup=False, checkpoint_every=2)
    cut = interrupted(begun.run, after=2)
    again = run(tmp_path / "warmup", tmp_path / "cut", 4, warmup=False, checkpoint_every=2)
    assert again.resume() == (again.step > 0)
    del cut[again.step :]
    again.run(lambda step: cut.append(step.loss))
    assert cut == whole
    weights = open_checkpoint(tmp_path / "whole").weights()
    assert weights.shapes == open_checkpoint(base).weights().shapes


def test_a_run_of_other_settings_is_not_gone_on_with(base: Path, tmp_path: Path) -> None:
    run(base, tmp_path / "run", 2, warmup=True).run(limit_s=0.0)
    assert run(base, tmp_path / "run", 2, warmup=True).resume()
    others: list[tuple[str, dict[str, Any]]] = [
        ("stage", {"warmup": False}),
        ("rows", {"rows": 2}),
        ("sequence", {"tokens": 48}),
        ("seen", {"seen": 4}),
        ("budget", {"heads": "0.0:4"}),
    ]
    for name, change in others:
        with pytest.raises(InvalidInput, match=rf"\({name}\)"):
            run(base, tmp_path / "run", 2, **{"warmup": True, **change}).resume()


def test_a_run_keeps_the_files_of_the_base_that_it_began_with(base: Path, tmp_path: Path) -> None:
    run(base, tmp_path / "run", 2, warmup=True).run(limit_s=0.0)
    other = Path(shutil.copytree(base, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text()) | {"max_position_embeddings": 99}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=r"\(base\)"):
        run(other, tmp_path / "run", 2, warmup=True).resume()
    assert open_checkpoint(tmp_path / "run").config("x") == open_checkpoint(base).config("x")
    with pytest.raises(InvalidInput, match="the base itself"):
        run(other, other, 2, warmup=True)


def test_only_matrices_decay_and_the_rate_falls_to_near_zero_at_the_end(base: Path, tmp_path: Path) -> None:
    trainer = run(base, tmp_path / "run", 100, warmup=True)
    matrices, vectors = trainer.optimizer.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert {weight.ndim for weight in matrices["params"]} == {2}
    assert {weight.ndim for weight in vectors["params"]} == {1}
    plan = trainer.plan
    assert plan.rate(50) == plan.rate(89) == plan.learning_rate
    assert plan.rate(99) < 0.15 * plan.learning_rate
    assert plan.rate(100) == pytest.approx(0.01 * plan.learning_rate)
