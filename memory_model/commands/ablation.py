"""What each step of tuning brought: the same questions asked of adapter after adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_model.commands.options import (
    ThreadsOption,
    chat_pieces,
    console,
    progress_bars,
    read_json,
    use_threads,
)


def ablation(
    steps: Annotated[
        list[str], typer.Argument(help="NAME=STEPS=ADAPTER, in order; the adapter 'none' is the plain model.")
    ],
    out: Annotated[Path, typer.Option(help="JSON; entries of the same name and model are kept.")] = Path(
        "docs/data/ablation.json"
    ),
    questions: Annotated[Path, typer.Option(help="Questions about held-out countries.")] = Path(
        "data/heldout_questions.json"
    ),
    natural: Annotated[Path | None, typer.Option(help="Natural questions, as for `eval`.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="Adapter whose memory heads the plain model gets.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Questions of each kind.")] = 50,
    threads: ThreadsOption = 0,
) -> None:
    """Score adapters one after the other, with exact memories (five) and with the reference as text.

    Computed in bfloat16 products, so figures differ in the last place from those of `quality`.
    """
    import torch

    from memory_model.assets import asset
    from memory_model.codec import ExactCodec
    from memory_model.errors import InvalidInput
    from memory_model.evaluation.conditions import Evaluation
    from memory_model.evaluation.memories import MemoryBank
    from memory_model.evaluation.rows import read_rows
    from memory_model.memory import MemoryFormat
    from memory_model.nn.adapter import Adapter
    from memory_model.nn.load import DEFAULT_MODEL, load_base, load_model

    use_threads(threads)
    kinds = {"held-out": list(read_rows(read_json(questions), limit))}
    if natural is not None:
        kinds["natural"] = list(read_rows(read_json(natural), limit))
    found: list[dict[str, Any]] = read_json(out) if out.is_file() else []
    budget = Adapter.load(like or asset(DEFAULT_MODEL, "adapter.safetensors")).memory
    with progress_bars() as progress:
        task = progress.add_task("adapters", total=len(steps))
        for entry in steps:
            try:
                name, count, path = entry.split("=")
                number = int(count)
            except ValueError as error:
                raise InvalidInput(f"{entry!r}: write NAME=STEPS=ADAPTER") from error
            loaded = load_base(memory=budget) if path == "none" else load_model(adapter=path)
            known = {(step["name"], step["model_id"], step["rows"]) for step in found}
            if (name, loaded.model_id, limit) not in known:
                exact = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
                bank, conditions = MemoryBank(loaded, exact), {}
                for kind, rows in kinds.items():
                    run = Evaluation(bank, chat_pieces(loaded).prompt, rows, batch=20)
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        scores = run.run(["memory_exact", "rag"])
                    conditions[f"memory, {kind}"] = scores["memory_exact"].summary()
                    conditions[f"text, {kind}"] = scores["rag"].summary()
                found = [step for step in found if step["name"] != name]
                found.append({
                    "name": name, "steps": number, "rows": limit, "model_id": loaded.model_id, "conditions": conditions,
                })  # fmt: skip
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(found, indent=1) + "\n")
            progress.advance(task)
    columns = list(dict.fromkeys(c for step in found for c in step["conditions"]))
    show = Table("tuning", "steps", *columns, title=f"token F1, {limit} questions of each kind")
    for step in found:
        cells = [f"{step['conditions'][c]['f1']:.3f}" if c in step["conditions"] else "" for c in columns]
        show.add_row(step["name"], str(step["steps"]), *cells)
    Console().print(show)
    console.print(f"written to [bold]{out}[/bold]")


def register(app: typer.Typer) -> None:
    """Add this file's command to the program."""
    app.command()(ablation)
