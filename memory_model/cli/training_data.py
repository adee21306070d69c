"""Training data for commands: the files of a mixture with what is reported about them, and prepared sequences."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory_model.data.tasks import QUESTIONS
from memory_model.terminal import console, progress_bars

if TYPE_CHECKING:
    from memory3.config import MemoryConfig
    from memory3.text.tokenizer import Tokenizer
    from memory_model.data.mixture import TrainingFiles
    from memory_model.data.retrieved import RetrievedSequences
    from memory_model.data.rows import QuestionRow

CACHE = Path("build/continual")


def training_files(
    documents: Path,
    corpus: Path | None,
    *,
    questions: Path = QUESTIONS,
    sequences: Callable[[], RetrievedSequences] | None = None,
    closed_book: Callable[[Sequence[QuestionRow]], Mapping[str, str]] = lambda _: {},
) -> TrainingFiles:
    """The files of a mixture; what is read is reported on the console."""
    from memory_model.data.mixture import TrainingFiles

    return TrainingFiles(documents, corpus, questions, sequences, closed_book, console.print)


def files_in_words(corpus: Path | None, *others: Path) -> str:
    """Names and bytes of the files that batches are drawn from: a run resumes with the same."""
    from memory_model.data.passages import corpus_files

    files = [path for path in others if path.is_file()] + (corpus_files(corpus) if corpus else [])
    return ", ".join(f"{path.name} ({path.stat().st_size} bytes)" for path in files)


def prepared_sequences(
    memory: MemoryConfig, tokenizer: Tokenizer, corpus: Path, sequence: int, embedder: Path | None
) -> RetrievedSequences:
    """The corpus as sequences with retrieved references; what the cache already holds is not made again."""
    from memory_model.data.passages import corpus_files
    from memory_model.data.retrieved import RetrievalPlan, prepare
    from memory_model.export.embedder_cache import open_embedder

    plan = RetrievalPlan(
        tokens=sequence,
        chunk_tokens=memory.chunk_tokens,
        reference_tokens=memory.reference_tokens,
        shared=memory.memories_per_chunk,
    )
    opened = open_embedder(embedder, threads=os.cpu_count() or 1)
    with progress_bars() as progress:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        return prepare(corpus_files(corpus), tokenizer, opened, CACHE, plan, report)
