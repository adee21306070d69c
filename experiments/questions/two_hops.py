"""Questions that two paragraphs answer together (HotpotQA, MuSiQue) as evaluation rows.

A row reads both and three others of the question's own paragraphs, each cut to the sentences around what it is needed
for, so that it fits a reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.questions.paragraphs import RowData, row_data, write_sets
from memory3.errors import CorruptFile
from memory3.text.tokenizer import Tokenizer
from memory_model.models.folder import ModelFolder
from memory_model.models.tensor_files import read_json
from memory_model.terminal import console

_TOKENS = 120
"""Of a text with its title: a reference of 128 begins with a few of its own."""
_OTHERS = 3
_SENTENCE_ENDS = re.compile(r"(?<=[.!?]) (?=\S)")


@dataclass(frozen=True)
class Paragraph:
    """needed: numbers of the sentences that the answer needs; none for a paragraph that it does not need."""

    title: str
    sentences: Sequence[str]
    needed: Collection[int]

    def cut(self, count: Callable[[str], int]) -> str | None:
        """Title and the longest run of sentences around the needed ones; None where these are too long."""
        first, last = (min(self.needed), max(self.needed)) if self.needed else (0, 0)

        def text(start: int, end: int) -> str:
            return f"{self.title}\n{' '.join(self.sentences[start : end + 1])}"

        if count(text(first, last)) > _TOKENS:
            return None
        while True:
            if last + 1 < len(self.sentences) and count(text(first, last + 1)) <= _TOKENS:
                last += 1
            elif first > 0 and count(text(first - 1, last)) <= _TOKENS:
                first -= 1
            else:
                return text(first, last)


def hotpot_paragraphs(row: dict[str, Any]) -> list[Paragraph]:
    """Of a row of HotpotQA, which names the supporting sentences."""
    needed: dict[str, set[int]] = {}
    for title, number in row["supporting_facts"]:
        needed.setdefault(title, set()).add(number)
    return [
        Paragraph(title, [s.strip() for s in sentences], {n for n in needed.get(title, set()) if n < len(sentences)})
        for title, sentences in row["context"]
    ]


def musique_paragraphs(row: dict[str, Any]) -> list[Paragraph]:
    """Of a row of MuSiQue: needed is the first sentence with the answer of the step that the paragraph is for."""
    answers = {step["paragraph_support_idx"]: step["answer"].lower() for step in row["question_decomposition"]}
    found = []
    for paragraph in row["paragraphs"]:
        sentences, answer = _SENTENCE_ENDS.split(paragraph["paragraph_text"]), answers.get(paragraph["idx"])
        holding = [n for n, sentence in enumerate(sentences) if answer and answer in sentence.lower()]
        found.append(Paragraph(paragraph["title"], sentences, holding[:1]))
    return found


def two_hop_rows(data: Sequence[dict[str, Any]], count: Callable[[str], int]) -> Iterator[RowData]:
    """Rows of the questions that need two paragraphs which fit a reference, and have three others.

    data: of HotpotQA or MuSiQue. The knowledge is the first of the two, the other one the second of the distractors.
    """
    for row in data:
        paragraphs = hotpot_paragraphs(row) if "context" in row else musique_paragraphs(row)
        needed = [p.cut(count) for p in paragraphs if p.needed]
        others = [text for p in paragraphs if not p.needed and (text := p.cut(count))][:_OTHERS]
        steps = len(row.get("question_decomposition", needed))
        if steps != 2 or len(needed) != 2 or len(others) < _OTHERS:
            continue
        first, second = needed
        if first and second:
            distractors = [others[0], second, *others[1:]]
            found = row_data(first, row["question"], row["answer"], distractors)
            yield found | {"answers": row.get("answer_aliases", [])}


def two_hop_questions(
    files: Annotated[list[Path], typer.Argument(help="JSON lists of HotpotQA's or MuSiQue's rows.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME_two_hops.json of each.")] = Path("build/questions"),
    model: Annotated[str | None, typer.Option(help="Model folder whose tokens are counted.")] = None,
) -> None:
    """Make evaluation rows of questions that two of the five texts read answer together.

    Measure them with `memory-model eval --data`, conditions memory and rag_five.
    """
    checkpoint = ModelFolder.open(model).checkpoint
    count = Tokenizer.from_json(checkpoint.tokenizer_json, checkpoint.special_tokens).count
    for file in files:
        data = read_json(file, list, "give a JSON list of rows of HotpotQA or MuSiQue")
        try:
            rows = list(two_hop_rows(data, count))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"{file} has no rows of HotpotQA or MuSiQue: {error!r}") from error
        for name, number in write_sets(out, {f"{file.stem}_two_hops": rows}).items():
            console.print(f"{number} of {len(data)} questions in {out / name}.json")
