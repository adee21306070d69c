"""Options that several experiments share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELD_OUT_QUESTIONS = Path("data/heldout_questions.json")

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
