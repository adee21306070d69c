"""Whether the search finds what a section of a document says, however the document is split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.eval.retrieval import ReferenceIndex
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.folder import ModelFolder
from memory_model.terminal import console

SETS = [Path("data/sections_dev.json"), Path("data/sections_test.json")]


@dataclass(frozen=True)
class Found:
    """Shares of the questions: whose answer is among the nearest five, is read by a device, is in the first reference.

    memories: read by a question on average.
    """

    nearest: float
    read: float
    first: float
    memories: float


def sections(
    data: Annotated[list[Path], typer.Argument(help="Rows whose knowledge is a whole document.")] = SETS,
    model: Annotated[str | None, typer.Option(help="Model folder, whose tokenizer and ranking count.")] = None,
) -> None:
    """Print how many references the documents of each set become, their tokens, and how many answers are found."""
    folder = ModelFolder.open(model)
    embedder, limit = open_embedder(None, folder.embedder), folder.memory.reference_tokens
    least, ranking = folder.calibrated_for(None)
    table = Table("set", "questions", "references", "tokens", "among five", "read", "first", "memories read")
    for path in data:
        rows = open_rows(path)
        references = references_of(rows, folder.tokenizer, limit)
        found = found_in(rows, ReferenceIndex.of(references, embedder, ranking=ranking, minimum_score=least))
        tokens = sum(map(folder.tokenizer.count, references))
        shares = (f"{share:.3f}" for share in (found.nearest, found.read, found.first))
        table.add_row(path.stem, str(len(rows)), str(len(references)), str(tokens), *shares, f"{found.memories:.2f}")
    console.print(table)


def references_of(rows: Sequence[QuestionRow], tokenizer: Tokenizer, limit: int) -> list[str]:
    """Those of every document of the rows, as the service splits them."""
    documents = dict.fromkeys((row.knowledge, row.title) for row in rows)
    return [part for text, title in documents for part in split(text, title, tokenizer.count, limit)]


def found_in(rows: Sequence[QuestionRow], index: ReferenceIndex) -> Found:
    """Search each question; a reference is right that has the row's title and its right answer."""
    questions = [row.question for row in rows]
    nearest = [_right(row, index, of) for row, of in zip(rows, index.nearest(questions, dropping=False), strict=True)]
    numbers = index.nearest(questions)
    read = [_right(row, index, of) for row, of in zip(rows, numbers, strict=True)]
    return Found(
        nearest=float(np.mean([any(right) for right in nearest])),
        read=float(np.mean([any(right) for right in read])),
        first=float(np.mean([right[:1] == [True] for right in read])),
        memories=float(np.mean([len(of) for of in numbers])),
    )


def _right(row: QuestionRow, index: ReferenceIndex, numbers: Sequence[int]) -> list[bool]:
    texts = (" ".join(index.references[number].split()) for number in numbers)
    return [text.startswith(row.title) and row.right_answer in text for text in texts]
