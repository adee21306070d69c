"""What a model answers wrongly without memory: the rejected answers of the task preferences."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from memory3.errors import InvalidInput
from memory_model.data.rows import QuestionRow
from memory_model.eval.conditions import Evaluation
from memory_model.eval.subject import Subject
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_model
from memory_model.models.tensor_files import read_json
from memory_model.terminal import progress_bar, write_json

QUESTIONS = 600
"""Questions to answer: two minutes of one core."""
WRONG_F1 = 0.3


def closed_book_mistakes(
    folder: ModelFolder, start: Path | None, file: Path, rows: Sequence[QuestionRow]
) -> Mapping[str, str]:
    """Wrong answers without memory of the model with the adapter `start`, by question; kept in `file`.

    Raises InvalidInput without a start, because preferences come after tuning.
    """
    if start is None:
        raise InvalidInput("task preferences needs --start: the adapter that it improves")
    if not file.is_file():
        answerable = [row for row in rows if row.answerable]
        subject = Subject.of(load_model(folder, start))
        run = Evaluation(subject, random.Random(0).sample(answerable, min(QUESTIONS, len(answerable))), ["none"])
        with subject.computing(), progress_bar("answers without memory", len(run.rows)) as advance:
            found = run.run(advance)["none"]
        answered = zip(run.rows, found.answers, found.f1, found.refused, strict=True)
        wrong = {row.question: text for row, text, f1, no in answered if text and f1 < WRONG_F1 and not no}
        write_json(file, wrong)
    answers: dict[str, str] = read_json(file)
    return answers
