"""A training run in a terminal."""

from __future__ import annotations

from memory_model.terminal import console, progress_bars
from memory_model.train.distributed import rank
from memory_model.train.tuner import Step, Tuner


def follow(tuner: Tuner, minutes: float) -> None:
    """Start or resume a run, with a progress bar in the first process; minutes: time limit, 0 for none."""
    resumed, limit_s = tuner.resume(), 60 * minutes or float("inf")
    if rank():
        tuner.run(limit_s=limit_s)
        return
    if tuner.finished:
        console.print(f"finished before, after {tuner.step} steps")
        return
    if resumed:
        console.print(f"resuming at step {tuner.step}")
    with progress_bars() as progress:
        task = progress.add_task("tuning", total=tuner.plan.steps, completed=tuner.step)
        smooth: dict[str, float] = {}

        def report(done: Step) -> None:
            smooth[done.task] = 0.9 * smooth.get(done.task, done.loss) + 0.1 * done.loss
            losses = ", ".join(f"{name} {loss:.2f}" for name, loss in sorted(smooth.items()))
            speed = f"{done.tokens / done.seconds:,.0f} tokens/s"
            progress.update(task, completed=done.step, description=f"{losses}; {speed}")

        tuner.run(report, limit_s=limit_s)
