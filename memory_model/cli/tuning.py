"""Tune a model to read memories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from memory_model.cli.options import (
    FACTBOOK,
    CorpusOption,
    DataOption,
    DeviceOption,
    FirstLayerOption,
    FullOption,
    HeadsOption,
    MinutesOption,
    NoiseOption,
    OutRunOption,
    RankOption,
    RateOption,
    SeedOption,
    StartOption,
    ThreadsOption,
    console,
    progress_bars,
    use_threads,
)
from memory_model.cli.training_data import base_to_tune, codec_of_tables, mixture_of


def adapt(
    out: OutRunOption,
    heads: HeadsOption = "",
    data: DataOption = FACTBOOK,
    corpus: CorpusOption = None,
    mixture: Annotated[
        str, typer.Option(help="Tasks and their weights: facts, prose, asked, continual, keeping.")
    ] = "facts:1",
    start: StartOption = None,
    steps: Annotated[int, typer.Option(help="Steps of --conversations over as many references.")] = 600,
    conversations: Annotated[int, typer.Option(help="Conversations, and references, of a step.")] = 10,
    unanswerable: Annotated[
        float, typer.Option(help="Share of the questions about facts that nothing read answers.")
    ] = 0.02,
    unanswerable_prose: Annotated[
        float,
        typer.Option(help="The same about prose; a few of these teach refusing what could be answered."),
    ] = 0.0,
    learning_rate: RateOption = 1e-3,
    decay: Annotated[float, typer.Option(help="Share of the steps in which the rate falls.")] = 0.3,
    full: FullOption = False,
    rank: RankOption = 32,
    first_layer: FirstLayerOption = 6,
    distillation: Annotated[float, typer.Option(help="Weight of the teacher's divergence; 0: none.")] = 0.5,
    codec_noise: NoiseOption = 0.03,
    codec: Annotated[
        Path | None, typer.Option(help="codec.npz that memories pass while tuning, instead of noise.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 50,
    minutes: MinutesOption = 0.0,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 0,
) -> None:
    """Tune a plain LLM to write and read memories with the given heads: a low-rank adapter, or all weights (--full).

    The tasks of the mixture: facts (questions about a knowledge base), prose (questions about passages of the
    corpus, made by rule), asked (those that people asked: `prepare-data --questions`), continual (the paper's
    training on text with a memory for each chunk), keeping (plain text without memory, so that the model stays
    what it was).
    """
    from memory_model.data.conversations import Sizes
    from memory_model.digest import file_sha256
    from memory_model.models.load import base_checkpoint
    from memory_model.nn.adapter import Adapter
    from memory_model.train.tuner import Step, Tuner, TuningPlan

    use_threads(threads)
    begun = Adapter.load(start) if start else None
    loaded = base_to_tune(heads, begun)
    plan = TuningPlan(
        steps=steps, learning_rate=learning_rate, decay=decay, rank=rank, alpha=float(rank), first_layer=first_layer,
        codec_noise=codec_noise, distillation=distillation, seed=seed, checkpoint_every=checkpoint_every, full=full,
    )  # fmt: skip
    prefix = loaded.writer.prefix
    in_the_loop = None
    if codec is not None:
        from memory_model.train.codec_noise import CodecInTheLoop

        in_the_loop = CodecInTheLoop(codec_of_tables(codec), loaded.config.memory, device=device)
    sizes = Sizes(written=conversations, conversations=conversations, unanswerable=unanswerable)
    source = mixture_of(
        mixture, loaded, data, corpus, seed, distil=distillation > 0, sizes=sizes,
        prose_sizes=replace(sizes, unanswerable=unanswerable_prose),
    )  # fmt: skip
    tuner = Tuner(
        loaded.model, prefix, source, plan, out, file_sha256(base_checkpoint().path),
        start=begun, device=device, codec=in_the_loop,
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

        tuner.run(report, limit_s=60 * minutes or float("inf"))
    if not tuner.finished:
        console.print(f"stopped at step {tuner.step} of {steps}: the same command goes on")
    console.print(
        f"adapter in [bold]{out / 'adapter.safetensors'}[/bold], metrics in {out / 'metrics.jsonl'}"
    )


def mean_adapter(
    adapters: Annotated[list[Path], typer.Argument(help="Adapter files of one line of tuning.")],
    out: Annotated[Path, typer.Option(help="Adapter file to write.")],
) -> None:
    """Write the mean of adapters, number by number: of two checkpoints of one run often better than either."""
    from memory_model.nn.adapter import Adapter

    mean = Adapter.mean([Adapter.load(path) for path in adapters])
    out.parent.mkdir(parents=True, exist_ok=True)
    mean.save(out)
    console.print(f"mean of {len(adapters)} adapters in [bold]{out}[/bold]")


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command()(adapt)
    app.command()(mean_adapter)
