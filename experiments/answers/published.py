"""Question sets that others published: in a folder that the user names, not in this repository (docs/data.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HALUEVAL = "halueval_qa_dev100.json"
ARTICLES = "squad_documents.jsonl"
"""Paragraphs of SQuAD 2.0 and XQuAD, by `experiments split-questions`."""
QuestionsOption = Annotated[
    Path | None,
    typer.Option("--questions", envvar="MEMORY3_DATA", help="Folder of published question sets (docs/data.md)."),
]
