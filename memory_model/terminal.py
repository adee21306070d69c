"""What commands share, those of `memory-model` and of `experiments`: options, progress bars, result files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import DownloadColumn, MofNCompleteColumn, Progress

from memory3.printable import Bars
from memory_model.defaults import MODEL

console = Console(stderr=True)

count, amount, share = partial(typer.Option, min=1), partial(typer.Option, min=0), partial(typer.Option, min=0, max=1)
"""Options of 1 or more, of 0 or more, and from 0 to 1."""
DataOption = Annotated[Path, typer.Option("--data", help="JSONL of documents {key, title, text}.")]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", help=f"Model folder (`memory-model new` makes one) or the name of a packaged one; default: {MODEL}."
    ),
]
AdapterOption = Annotated[Path | None, typer.Option("--adapter", help="Adapter file; default: the model's.")]
CodecOption = Annotated[Path | None, typer.Option("--codec", help="codec.npz; default: the model's.")]
CorpusOption = Annotated[Path | None, typer.Option("--corpus", help="Folder of passages (docs/data.md).")]
EmbedderOption = Annotated[
    Path | None, typer.Option("--embedder", help="Folder of an exported embedder; default: exported to build/.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Random seed.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu or cuda; with torchrun one GPU per process.")]
PrecisionOption = Annotated[
    Literal["float32", "auto"],
    typer.Option("--precision", help="Of products: float32, or auto: bfloat16 if supported."),
]
ThreadsOption = Annotated[int, typer.Option("--threads", min=0, help="CPU threads; 0: torch's default.")]


def progress_bars(*, bytes_of: bool = False) -> Progress:
    """Progress bars on stderr for long work, which count steps, or bytes."""
    counts = DownloadColumn() if bytes_of else MofNCompleteColumn()
    return Bars(*Progress.get_default_columns(), counts, console=console)


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """One bar; yields the function that advances it, by 1 or by a count."""
    with progress_bars() as progress:
        task = progress.add_task(what, total=total)
        yield lambda count=1: progress.advance(task, count)


def use_threads(count: int) -> None:
    """Let torch use `count` threads; 0 leaves its own choice."""
    if count:
        import torch

        torch.set_num_threads(count)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A file with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
