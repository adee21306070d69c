"""Measure what an embedder's scores mean, and keep it with the model folder or the bundle."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memory3.printable import counted
from memory_model import terminal
from memory_model.terminal import count, progress_bar, write_json


def calibrate_retrieval(
    data: Annotated[list[Path], typer.Option(help="JSON list of development questions; may be repeated.")],
    documents: Annotated[
        Path | None, typer.Option(exists=True, help="JSONL of documents {title, text} that are searched too.")
    ] = None,
    kept: Annotated[
        float, terminal.share(help="Share of the right texts above the minimum score and within the largest drop.")
    ] = 0.99,
    bundle: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Bundle whose embedder is measured.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="JSON file for the result.")] = None,
    save: Annotated[bool, typer.Option(help="Write the result into the model folder, or the bundle.")] = False,
    limit: Annotated[int | None, count(help="Only the first rows of each file.")] = None,
    model: terminal.ModelOption = None,
    embedder: terminal.EmbedderOption = None,
) -> None:
    """Set minimum score, weights of words and titles, and largest drop for an embedder.

    Every question is searched among the texts of all rows, their distractors and the documents. The weights are those
    that rank the right texts best. A lower share of kept texts leaves more of the wrong ones out. Cosines of embedders
    differ, so the numbers of one are wrong for another. Use some hundred development questions about documents like
    yours.
    """
    from memory3.errors import InvalidInput
    from memory3.files.bundle import Bundle, replace_manifest
    from memory_model.data.rows import open_rows
    from memory_model.eval import calibration
    from memory_model.eval.retrieval import references_of
    from memory_model.export.embedder_cache import open_embedder
    from memory_model.models.folder import ModelFolder

    if bundle is not None:
        opened = Bundle.open(bundle)
        tokenizer, memory, measured = opened.tokenizer, opened.config.memory, opened.embedder()
    else:
        folder = ModelFolder.open(model)
        if save:
            folder.require_own(f"copy {folder.path}, and give the copy with --model")
        if save and embedder is not None:
            raise InvalidInput(
                "the result of another embedder is not the folder's: name the embedder in its model.json"
            )
        tokenizer, memory = folder.tokenizer, folder.memory
        measured = open_embedder(embedder, folder.embedder)
    rows = [row for path in data for row in open_rows(path, limit)]
    others = references_of(documents, tokenizer, memory.reference_tokens) if documents else []
    with progress_bar("embedding", None) as advance:
        found = calibration.calibrate_retrieval(
            rows, measured, tokenizer, memory.reference_tokens, others=others, kept=kept, progress=advance
        )
    table = Table("", "", show_header=False, title=f"{measured.name}, {counted(found.questions, 'question')}")
    for name, value in {**vars(found.ranking), **asdict(found)}.items():
        if isinstance(value, float):
            table.add_row(name.replace("_", " "), f"{value:g}" if name in vars(found.ranking) else f"{value:.3f}")
    Console().print(table)
    if out is not None:
        write_json(out, {"embedder": measured.name, "embedder_id": measured.embedder_id, **asdict(found)})
    least, ranking = found.minimum_score, found.ranking
    if save and bundle is not None:
        replace_manifest(bundle, replace(opened.manifest, minimum_score=least, ranking=ranking))
    elif save:
        replace(folder, minimum_score=least, ranking=ranking).save()
    place = bundle if bundle is not None else folder.path
    terminal.console.print(f"saved in {place}" if save else f"--save writes it to {place}")
