"""Pretrain a model of explicit memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from memory_model import terminal
from memory_model.cli.training_data import files_in_words, prepared_sequences
from memory_model.terminal import amount, console, count, share, use_threads


def pretrain(
    base: Annotated[Path, typer.Argument(help="Hugging Face folder: random weights or the previous stage.")],
    corpus: Annotated[Path, typer.Option(help="Folder of passages (docs/data.md).")],
    out: Annotated[Path, typer.Option(help="Hugging Face folder of the result; resumes a run.")],
    stage: Annotated[
        Literal["warmup", "continual"], typer.Option(help="warmup: without memory; continual: with it (paper 3.6).")
    ] = "warmup",
    heads: Annotated[str, typer.Option(help="Memory budget: paper[:TOKENS], all, or LAYER.HEAD:TOKENS,…")] = "paper",
    steps: Annotated[int, count(help="Number of steps.")] = 1000,
    rows: Annotated[int, count(help="Sequences per batch.")] = 2,
    accumulate: Annotated[int, amount(help="Batches per step over all processes; default: one each.")] = 0,
    sequence: Annotated[int, count(help="Tokens per sequence.")] = 2048,
    seen: Annotated[int, amount(help="Sequences to skip, seen by the previous stage.")] = 0,
    learning_rate: Annotated[float, amount(help="Highest learning rate.")] = 3e-3,
    decay: Annotated[float, share(help="Share of steps in which the rate decays to near zero.")] = 0.1,
    weight_decay: Annotated[float, amount(help="Weight decay of matrices.")] = 0.1,
    embedder: terminal.EmbedderOption = None,
    checkpoint_layers: Annotated[bool, typer.Option("--checkpoint-layers", help="As in `adapt`.")] = False,
    pass_tokens: Annotated[int, count(help="As in `adapt`.")] = 8192,
    checkpoint_every: Annotated[int, count(help="Steps between checkpoints.")] = 100,
    minutes: Annotated[float, amount(help="Save and stop after this time; 0: no limit.")] = 0.0,
    seed: terminal.SeedOption = 0,
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Train all weights on text whose chunks read retrieved references, in the paper's two stages.

    Run warmup first, then `--stage continual` from its result, with `--seen` to skip the text of the first stage. Then
    make a model folder with `memory-model new OUT`.
    """
    from memory3.config import parse_budget
    from memory3.text.tokenizer import Tokenizer
    from memory_model.models.folder import open_checkpoint
    from memory_model.nn.writing import writing_device
    from memory_model.train.distributed import first_process_first, process_group, processes
    from memory_model.train.pretrainer import PretrainingPlan, pretrainer
    from memory_model.train.progress import follow

    use_threads(threads)
    writing_device(device)  # raises where there is none
    checkpoint = open_checkpoint(base)
    shape = checkpoint.config(base.name)
    config = shape.with_memory(parse_budget(heads, shape))
    tokenizer = Tokenizer.from_json(checkpoint.tokenizer_json, checkpoint.special_tokens)
    with process_group(device):
        with first_process_first():
            data = prepared_sequences(config.memory, tokenizer, corpus, sequence, embedder)
        plan = PretrainingPlan(
            steps=steps,
            learning_rate=learning_rate,
            decay=decay,
            weight_decay=weight_decay,
            seed=seed,
            warmup=max(1, min(2000, steps // 20)),
            checkpoint_every=checkpoint_every,
            accumulate=accumulate or processes(),
            mixture=files_in_words(corpus),
            rows=rows,
            stage=stage,
            seen=seen,
        )
        trainer = pretrainer(
            checkpoint, out, config, data, plan, device=device, checkpoint=checkpoint_layers, most_tokens=pass_tokens
        )
        follow(trainer, minutes)
    console.print(f"weights in [bold]{out}[/bold], metrics in {out / 'metrics.jsonl'}")
