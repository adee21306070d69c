"""What several commands share: their options, progress bars, and how files are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True)
FACTBOOK = Path("data/factbook.jsonl")
HELD_OUT_QUESTIONS = Path("data/heldout_questions.json")
EMBEDDER, VECTORS = Path("build/embedder"), Path("build/embeddings")

DataOption = Annotated[
    Path, typer.Option("--data", help="Knowledge base to tune on: JSONL of {key, title, text}.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", help="Model folder (`memory-model new` makes one); default: the packaged SmolLM2-135M."
    ),
]
AdapterOption = Annotated[
    Path | None, typer.Option("--adapter", help="Adapter file; default: the shipped one.")
]
CodecOption = Annotated[Path | None, typer.Option("--codec", help="codec.npz; default: the shipped one.")]
CorpusOption = Annotated[
    Path | None, typer.Option("--corpus", help="Folder of passages (docs/data.md), for prose.")
]
QuestionsOption = Annotated[
    Path, typer.Option("--questions", help="JSON list of {knowledge, question, right_answer}.")
]
LimitOption = Annotated[int, typer.Option("--limit", help="Questions of each kind, or of each point.")]
StopAfterOption = Annotated[
    int,
    typer.Option(
        "--stop-after", help="Stop after so many new measurements; the same command goes on. 0: all."
    ),
]
NaturalOption = Annotated[
    Path | None,
    typer.Option("--natural", help="Natural questions: rows as for `eval`, not part of the repository."),
]
EmbedderOption = Annotated[
    Path,
    typer.Option("--embedder", help="Folder of the embedder; the default one is made when it is missing."),
]
SeedOption = Annotated[int, typer.Option("--seed", help="The same seed gives the same result.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu or cuda; with torchrun one GPU a process.")]
ThreadsOption = Annotated[int, typer.Option("--threads", help="CPU threads; 0 leaves torch's choice.")]


def progress_bars() -> Progress:
    """Progress bars on stderr for long work."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), console=console,
    )  # fmt: skip


def use_threads(count: int) -> None:
    """Let torch use `count` threads; 0 leaves its own choice."""
    if count:
        import torch

        torch.set_num_threads(count)


def read_json(path: Path) -> Any:
    """The contents of a JSON file; raises MissingFile or CorruptFile."""
    from memory_model.errors import CorruptFile, MissingFile

    if not path.is_file():
        raise MissingFile(f"no file {path}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not JSON: {error}") from error
