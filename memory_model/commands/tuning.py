"""Tune a model to read memories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memory_model.commands.options import (
    FACTBOOK,
    DataOption,
    ThreadsOption,
    codec_of_tables,
    console,
    mixture_of,
    parse_budget,
    progress_bars,
    use_threads,
)


def adapt(
    out: Annotated[Path, typer.Option(help="Folder of the run; an interrupted run in it is resumed.")],
    heads: Annotated[str, typer.Option(help="'all', or layer.head:tokens,… such as 18.2:128,20.2:128.")],
    data: DataOption = FACTBOOK,
    corpus: Annotated[
        Path | None, typer.Option(help="Folder of `prepare-data`; needed for prose, continual and keeping.")
    ] = None,
    mixture: Annotated[
        str, typer.Option(help="Tasks and their weights: facts, prose, continual, keeping.")
    ] = "facts:1",
    start: Annotated[Path | None, typer.Option(help="Adapter to continue from.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of 10 conversations over 10 references.")] = 600,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    decay: Annotated[float, typer.Option(help="Share of the steps in which the rate falls.")] = 0.3,
    rank: Annotated[int, typer.Option(help="Rank of the adapter.")] = 32,
    first_layer: Annotated[int, typer.Option(help="First layer that is tuned.")] = 6,
    distillation: Annotated[float, typer.Option(help="Weight of the teacher's divergence; 0: none.")] = 0.5,
    codec_noise: Annotated[float, typer.Option(help="Noise on memories, as a share of variance.")] = 0.03,
    codec: Annotated[
        Path | None, typer.Option(help="codec.npz that memories pass while tuning, instead of noise.")
    ] = None,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: ThreadsOption = 0,
) -> None:
    """Tune a plain LLM to write and read memories with the given heads (a low-rank adapter).

    The tasks of the mixture: facts (questions about a knowledge base), prose (questions about passages of the
    corpus), continual (the paper's training on text with a memory for each chunk), keeping (plain text without
    memory, so that the model stays what it was).
    """
    from memory_model.digest import file_sha256
    from memory_model.nn.adapter import Adapter
    from memory_model.nn.load import base_checkpoint, load_base
    from memory_model.training.adapt import Step, Tuner, TuningPlan

    use_threads(threads)
    loaded = load_base(memory=parse_budget(heads))
    plan = TuningPlan(
        steps=steps, learning_rate=learning_rate, decay=decay, rank=rank, alpha=float(rank), first_layer=first_layer,
        codec_noise=codec_noise, distillation=distillation, seed=seed,
    )  # fmt: skip
    prefix = loaded.writer.prefix
    in_the_loop = None
    if codec is not None:
        from memory_model.training.codec_noise import CodecInTheLoop

        in_the_loop = CodecInTheLoop(codec_of_tables(codec), loaded.config.memory, device=device)
    source = mixture_of(mixture, loaded, data, corpus, seed, distil=distillation > 0)
    tuner = Tuner(
        loaded.model, prefix, source, plan, out, file_sha256(base_checkpoint().path),
        start=Adapter.load(start) if start else None, device=device, codec=in_the_loop,
    )  # fmt: skip
    if tuner.resume():
        console.print(f"resuming at step {tuner.step}")
    with progress_bars() as progress:
        task = progress.add_task("tuning", total=steps, completed=tuner.step)
        smooth: dict[str, float] = {}

        def report(done: Step) -> None:
            smooth[done.task] = 0.9 * smooth.get(done.task, done.loss) + 0.1 * done.loss
            losses = ", ".join(f"{name} {loss:.2f}" for name, loss in sorted(smooth.items()))
            progress.update(task, completed=done.step, description=f"{losses}; {done.seconds:.1f} s a step")

        tuner.run(report)
    console.print(
        f"adapter in [bold]{out / 'adapter.safetensors'}[/bold], metrics in {out / 'metrics.jsonl'}"
    )


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command()(adapt)
