"""What several commands share: their options, progress bars, and the embedder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zlib import crc32

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from memory3.printable import Bars

if TYPE_CHECKING:
    from memory3.embedder import Embedder

console = Console(stderr=True)
FACTBOOK = Path("data/factbook.jsonl")
EMBEDDER = Path("build/embedder")

count, amount, share = partial(typer.Option, min=1), partial(typer.Option, min=0), partial(typer.Option, min=0, max=1)
"""Options of 1 or more, of 0 or more, and from 0 to 1."""
DataOption = Annotated[Path, typer.Option("--data", help="JSONL of documents {key, title, text}.")]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Model folder (`memory-model new` makes one); default: the packaged SmolLM2-135M."),
]
AdapterOption = Annotated[Path | None, typer.Option("--adapter", help="Adapter file; default: the model's.")]
CodecOption = Annotated[Path | None, typer.Option("--codec", help="codec.npz; default: the model's.")]
CorpusOption = Annotated[Path | None, typer.Option("--corpus", help="Folder of passages (docs/data.md).")]
EmbedderOption = Annotated[
    Path | None, typer.Option("--embedder", help="Folder of an exported embedder; default: exported to build/.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Random seed.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu or cuda; with torchrun one GPU per process.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=0, help="CPU threads; 0: torch's default.")]


def progress_bars() -> Progress:
    """Progress bars on stderr for long work."""
    return Bars(*Progress.get_default_columns(), MofNCompleteColumn(), console=console)


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


def open_embedder(folder: Path | None, name: str = "minilm", *, threads: int = 1) -> Embedder:
    """The embedder in `folder`; None: the one of this name (`minilm` or a folder), exported under build/ once."""
    from memory3.embedder import CONFIG, Embedder
    from memory_model.export.embedder import MINILM, export_embedder

    if folder is None:
        place = Path(name).resolve()
        folder = EMBEDDER if name == MINILM else EMBEDDER.with_name(f"embedder-{place.name}-{crc32(bytes(place)):08x}")
        if not (folder / CONFIG).is_file():
            export_embedder(name, folder)
    return Embedder(folder, threads=threads)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A file with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
