"""An evaluation in a terminal: progress bars while it runs, a table of its means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from memory3.runtime.embedder import Embedder
from memory_model.eval.conditions import Evaluation, Scores
from memory_model.eval.retrieval import ReferenceIndex, references_of
from memory_model.eval.subject import Subject
from memory_model.terminal import progress_bar


def scored(run: Evaluation, name: str) -> dict[str, Scores]:
    """Run an evaluation with a progress bar; the scores by condition."""
    with progress_bar(f"{name}: answers", len(run.rows) * len(run.conditions)) as advance:
        return run.run(advance)


def open_knowledge_base(
    subject: Subject, documents: Path, embedder: Embedder, folder: Path | None = None
) -> ReferenceIndex:
    """Embed all references of a JSONL file of documents, with a progress bar.

    folder: the embedder's, None for that of the model folder, whose minimum score and ranking are then taken.
    """
    least, ranking = subject.loaded.folder.calibrated_for(folder)
    references = references_of(documents, subject.loaded.tokenizer, subject.loaded.config.memory.reference_tokens)
    with progress_bar(f"embedding {documents.name}", len(references)) as advance:
        return ReferenceIndex.of(references, embedder, advance, ranking=ranking, minimum_score=least)


def show(conditions: Mapping[str, Mapping[str, float]], title: str) -> None:
    """Print a table of means by condition."""
    table = Table("score", *conditions, title=f"{title}; ±: standard error")
    for name in dict.fromkeys(n for scores in conditions.values() for n in scores if not n.endswith("_error")):
        columns = conditions.values()
        table.add_row(name, *(f"{c[name]:.3f}±{c[f'{name}_error']:.3f}" if name in c else "" for c in columns))
    Console().print(table)
