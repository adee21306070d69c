"""Continual training as the paper does it, and plots of runs."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from memory_model.cli.options import (
    EMBEDDER,
    FACTBOOK,
    DeviceOption,
    EmbedderOption,
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
from memory_model.cli.training_data import base_to_tune, held_out_titles

CORPUS = Path("build/corpus")
CACHE = Path("build/continual")


def continual(
    out: OutRunOption,
    corpus: Annotated[Path, typer.Option(help="Folder of `memory-model prepare-data`.")] = CORPUS,
    sources: Annotated[
        str, typer.Option(help="Files of the corpus, by name, with commas; default: all.")
    ] = "",
    start: StartOption = None,
    warmup_stage: Annotated[
        bool, typer.Option("--warmup-stage", help="The first stage: the same sequences without memory.")
    ] = False,
    heads: HeadsOption = "",
    steps: Annotated[int, typer.Option(help="Steps of --rows sequences.")] = 600,
    sequence: Annotated[int, typer.Option(help="Tokens of a sequence; the paper has 2048.")] = 512,
    rows: Annotated[int, typer.Option(help="Sequences a step, over all processes.")] = 4,
    limit: Annotated[int, typer.Option(help="Use documents of about so many tokens; 0 is all.")] = 0,
    most_overlap: Annotated[
        float, typer.Option(help="Largest share of a reference that its sequence may contain.")
    ] = 0.9,
    learning_rate: RateOption = 3e-4,
    full: FullOption = False,
    rank: RankOption = 32,
    first_layer: FirstLayerOption = 0,
    codec_noise: NoiseOption = 0.0,
    cache: Annotated[
        Path, typer.Option(help="Where cut sequences and retrieved references are kept.")
    ] = CACHE,
    embedder: EmbedderOption = EMBEDDER,
    minutes: MinutesOption = 0.0,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 0,
) -> None:
    """Train on running text whose chunks of 64 tokens read retrieved references (paper 3.6).

    Sequences and references are made from the corpus once and kept in --cache; texts about the factbook's held-out
    countries stay out. --start is the adapter of the warm-up stage, for example. On several processes:
    torchrun --nproc-per-node 8 -m memory_model.cli continual --device cuda …
    """
    from memory_model.data.continual import ContinualBatches
    from memory_model.data.retrieved import corpus_files
    from memory_model.digest import file_sha256
    from memory_model.models.load import base_checkpoint
    from memory_model.nn.adapter import Adapter
    from memory_model.train.parallel import ParallelTuner, process_group, processes
    from memory_model.train.tuner import Step, Tuner, TuningPlan

    files = corpus_files(corpus, [name.strip() for name in sources.split(",") if name.strip()])
    use_threads(threads)
    begun = Adapter.load(start) if start else None
    loaded = base_to_tune(heads, begun)
    plan = TuningPlan(
        steps=steps, learning_rate=learning_rate, decay=0.1, rank=rank, alpha=float(rank), first_layer=first_layer,
        codec_noise=0.0 if warmup_stage else codec_noise, distillation=0.0, weight_decay=0.1, seed=seed, full=full,
    )  # fmt: skip
    base = file_sha256(base_checkpoint().path)
    with ExitStack() as stack:
        mesh = stack.enter_context(process_group(device)) if processes() > 1 else None
        first = mesh is None or mesh.get_local_rank() == 0
        data = prepared_sequences(
            loaded, files, sequence=sequence, limit=limit, most_overlap=most_overlap, cache=cache,
            embedder=embedder, threads=threads, first=first,
            without=held_out_titles(FACTBOOK) if FACTBOOK.is_file() else (),
        )  # fmt: skip
        batches = ContinualBatches(data, seed, rows=rows, warmup=warmup_stage)
        prefix = loaded.writer.prefix
        tuner = (
            Tuner(loaded.model, prefix, batches, plan, out, base, start=begun, device=device)
            if mesh is None
            else ParallelTuner(loaded.model, prefix, batches, plan, out, base, mesh, start=begun)
        )
        if tuner.resume() and first:
            console.print(f"resuming at step {tuner.step}")
        progress = stack.enter_context(progress_bars())
        task = progress.add_task("training", total=steps, completed=tuner.step, visible=first)
        smooth = [0.0, 0.0]

        def report(done: Step) -> None:
            smooth[0], smooth[1] = 0.95 * smooth[0] + done.loss, 0.95 * smooth[1] + 1
            said = f"loss {smooth[0] / smooth[1]:.3f}, {rows * sequence / done.seconds:,.0f} tokens/s"
            progress.update(task, completed=done.step, description=said)

        tuner.run(report, limit_s=60 * minutes or float("inf"))
    if first:
        console.print(
            f"adapter in [bold]{out / 'adapter.safetensors'}[/bold], metrics in {out / 'metrics.jsonl'}"
        )


def plot_run(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs of adapt or continual.")],
    out: Annotated[Path, typer.Option(help="Figure to write: .svg or .png.")] = Path("build/loss.svg"),
    smoothing: Annotated[float, typer.Option(help="Share of the steps that a point averages over.")] = 0.03,
) -> None:
    """Plot the losses of runs, by task, and their learning rates."""
    from memory_model.train.curves import plot_runs, read_curves

    plot_runs({folder.name: read_curves(folder) for folder in folders}, out, smoothing)
    console.print(f"plot in [bold]{out}[/bold]")


def prepared_sequences(
    loaded: Any, files: Sequence[Path], *, sequence: int = 512, limit: int = 0, most_overlap: float = 0.9,
    cache: Path = CACHE, embedder: Path = EMBEDDER, threads: int = 0, first: bool = True,
    without: Collection[str] = (),
) -> Any:  # fmt: skip
    """The corpus as sequences with retrieved references, from the cache as far as they are there.

    without: titles of documents that stay out, beside those that the corpus holds out.
    Of several processes the `first` one makes them, the others wait and read.
    """
    from memory_model.data.retrieved import RetrievalPlan, prepare
    from memory_model.embedder import Embedder
    from memory_model.export.embedder import MINILM, export_embedder
    from memory_model.train.parallel import processes

    memory = loaded.config.memory
    plan = RetrievalPlan(
        tokens=sequence, chunk_tokens=memory.chunk_tokens, reference_tokens=memory.reference_tokens,
        shared=memory.memories_per_chunk, most_overlap=most_overlap, limit=limit,
    )  # fmt: skip
    if not first:
        _wait_for_the_first()
    elif not (embedder / "embedder.onnx").is_file():
        export_embedder(MINILM, embedder)
    with progress_bars() as progress:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        embed = Embedder(embedder, threads=threads or os.cpu_count() or 1)
        made = prepare(files, loaded.tokenizer, embed, cache, plan, report, without)
    if first and processes() > 1:
        _wait_for_the_first()
    return made


def _wait_for_the_first() -> None:
    import torch.distributed as dist

    dist.barrier()


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command()(continual)
    app.command("plot-run")(plot_run)
