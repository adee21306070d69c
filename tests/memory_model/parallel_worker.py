"""What each process of the parallel test runs: gradients of a shared batch, then a tuning run cut in two."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from memory_model.train.parallel import ParallelTuner, process_group, share, spread
from memory_model.train.tuner import TuningPlan, batch_losses
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.memory_model.parallel_batches import FULL, PLAN, SharedBatches, fixed_batch
from tests.memory_model.tiny import PREFIX


def gradients(mesh: torch.distributed.DeviceMesh) -> dict[str, float]:
    """Largest difference of every weight's gradient from that of one process, relative to its size."""
    alone = tiny_loaded().model.requires_grad_(True)
    losses = batch_losses(alone, fixed_batch(), PREFIX)
    (losses.answers + 0.5 * losses.teacher).backward()
    together = tiny_loaded().model.requires_grad_(True)
    step = spread(together, mesh)
    own = share(fixed_batch(), mesh.get_local_rank(), mesh.size())
    answers, teacher = step(own.batch, PREFIX, None, True)
    (mesh.size() * (own.answers * answers + 0.5 * own.teacher * teacher)).backward()
    result = {}
    for (name, p), (_, q) in zip(together.named_parameters(), alone.named_parameters(), strict=True):
        assert q.grad is not None
        assert isinstance(p.grad, DTensor)
        found = p.grad.full_tensor()
        result[name] = float((found - q.grad).abs().max() / q.grad.abs().max().clamp_min(1e-6))
    return result


def main(folder: Path, plan: TuningPlan) -> None:
    """Both parts; rank 0 writes result.json."""
    torch.set_num_threads(1)
    with process_group("cpu") as mesh:
        result: dict[str, object] = {"gradients": gradients(mesh)}
        steps: list[tuple[float, float, float]] = []

        def tuner() -> ParallelTuner:
            return ParallelTuner(
                tiny_loaded().model, PREFIX, SharedBatches(), plan, folder / "run", "base", mesh
            )

        class Killed(Exception):
            pass

        def until_four(step: object) -> None:
            steps.append((step.loss, step.teacher, step.norm))  # type: ignore[attr-defined]
            if len(steps) == 4:
                raise Killed

        first = tuner()
        with suppress(Killed):
            first.run(until_four)
        second = tuner()
        assert second.resume()
        assert second.step == 3
        del steps[3:]
        second.run(lambda step: steps.append((step.loss, step.teacher, step.norm)))
        result["steps"] = steps
        if mesh.get_local_rank() == 0:
            (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), FULL if sys.argv[2] == "full" else PLAN)
    os._exit(0)  # gloo's threads now and then outlive the interpreter, and end a good run with an abort
