"""Two processes on gloo give the gradients, losses and adapter of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memory_model.data.batches import IGNORE
from memory_model.nn.adapter import Adapter
from memory_model.train.parallel import share
from memory_model.train.tuner import Tuner, batch_losses
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.memory_model.parallel_batches import FULL, PLAN, SharedBatches, fixed_batch
from tests.memory_model.tiny import PREFIX

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_shares_of_a_batch_add_up_to_its_losses(world: int) -> None:
    """Also where a process gets no text, no label, no reference or nothing from the teacher."""
    model, batch = tiny_loaded().model, fixed_batch()
    with torch.inference_mode():
        whole = batch_losses(model, batch, PREFIX)
        shares = [share(batch, rank, world) for rank in range(world)]
        parts = [batch_losses(model, s.batch, PREFIX) for s in shares]
    assert sum(s.answers for s in shares) == pytest.approx(1)
    assert sum(s.teacher for s in shares) == pytest.approx(1)
    answers = sum(s.answers * p.answers for s, p in zip(shares, parts, strict=True))
    teacher = sum(s.teacher * p.teacher for s, p in zip(shares, parts, strict=True))
    torch.testing.assert_close(answers, whole.answers)
    torch.testing.assert_close(teacher, whole.teacher)
    for part in (s.batch for s in shares):
        assert len(part.reference_ids) >= 1
        assert (part.labels[:, 1:] != IGNORE).any()
        assert part.teacher is not None
        assert len(part.teacher.matched) >= 1


@pytest.mark.parametrize("name", ["adapter", pytest.param("full", marks=pytest.mark.slow)])
def test_two_processes_tune_like_one_through_a_kill_and_a_resume(name: str, tmp_path: Path) -> None:
    plan = FULL if name == "full" else PLAN
    losses: list[tuple[float, float, float]] = []
    alone = Tuner(tiny_loaded().model, PREFIX, SharedBatches(), plan, tmp_path / "alone", "base")
    alone.run(lambda step: losses.append((step.loss, step.teacher, step.norm)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "tests.memory_model.parallel_worker", str(tmp_path), name],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert max(result["gradients"].values()) < 1e-4, result["gradients"]
    # Products in bfloat16 round otherwise when a batch is split; a wrong weight of a share would be 10 % off.
    for ours, expected in zip(result["steps"], losses, strict=True):
        assert ours == pytest.approx(expected, rel=0.02)
    written = [
        json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert written == [1, 2, 3, 4, 4, 5, 6], "rank 0 alone writes, a repeated step twice"
    one, two = (Adapter.load(tmp_path / run / "adapter.safetensors") for run in ("alone", "run"))
    assert one.added().keys() == two.added().keys()
    # Adam moves a weight of almost no gradient by the rounding's sign, so whole matrices are compared.
    for weight, added in one.added().items():
        assert float((two.added()[weight] - added).norm() / added.norm()) < (0.3 if plan.full else 0.1), (
            weight
        )
