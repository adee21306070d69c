"""Memory and RAG with 3, 5 and 7 references: accuracy of choices against time (paper 7.3, 7.4).

Every question retrieves from one knowledge base of all rows' texts, once. A row with choices is answered by the
likeliest of them: by its first token where it is yes, no or maybe, else in nats a token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from experiments.answers.scoring import answer_nll
from memory3.errors import InvalidInput
from memory3.text.references import split
from memory_model import terminal
from memory_model.eval.retrieval import ReferenceIndex, query_of
from memory_model.eval.scores import Mean
from memory_model.eval.subject import Subject
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.tensor_files import read_json
from memory_model.nn.generate import prefilled
from memory_model.terminal import console, progress_bar, use_threads, write_json

REFERENCES = (3, 5, 7)
MEMORY = "memory"
DECISIONS = ("yes", "no", "maybe")


@dataclass(frozen=True)
class Choice:
    """A question with its choices, the right one's number, and the texts that it was made from."""

    question: str
    choices: tuple[str, ...]
    right: int
    texts: tuple[str, ...]


def read_choices(path: Path) -> list[Choice]:
    """Rows of PubMedQA {question, contexts, final_decision or answer}, or of HaluEval; raises InvalidInput."""
    rows = []
    for row in read_json(path, list):
        try:
            if "contexts" in row:
                text = f"{row['question']} Answer yes, no or maybe."
                right = DECISIONS.index(row["final_decision"] if "final_decision" in row else row["answer"])
                rows.append(Choice(text, DECISIONS, right, tuple(row["contexts"])))
            else:
                answers = (row["right_answer"], row["hallucinated_answer"])
                rows.append(Choice(row["question"], answers, 0, (row["knowledge"],)))
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"{path}: row {len(rows)} is neither of PubMedQA nor of HaluEval: {error!r}") from error
    return rows


def answered(subject: Subject, row: Choice, references: Sequence[str], memory: bool) -> tuple[float, float]:
    """1.0 for a right answer, and processor seconds of reading and scoring the question.

    Memories are written before; decompressing them is part of the reading. Choices of text read the prompt once each.
    """
    loaded = subject.loaded
    before = "" if memory else "".join(f"{text.strip()}\n\n" for text in references)
    if memory:
        subject.bank.write(references)
    began = time.process_time()
    memories = subject.bank.read([references]) if memory else None
    prompt = subject.prompt(before + row.question)
    ids = [loaded.chat.encode_answer(choice) for choice in row.choices]
    if row.choices == DECISIONS:
        logits = prefilled(loaded.model, [prompt], subject.prefix, memories)[1][0]
        chosen = int(logits[[answer[0] for answer in ids]].argmax())
    else:
        end = [loaded.tokenizer.end_of_turn_id]
        nll = [answer_nll(loaded.model, [prompt], [a + end], subject.prefix, memories)[0] for a in ids]
        chosen = nll.index(min(nll))
    return float(chosen == row.right), time.process_time() - began


def summary(measured: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Mean accuracy and seconds of every arm, and how much higher the memory's accuracy is on the same questions."""
    right = {name: [score for score, _ in rows] for name, rows in measured.items()}
    return {
        name: {
            "accuracy": vars(Mean.of(right[name])),
            "memory_higher": vars(Mean.of([a - b for a, b in zip(right[MEMORY], right[name], strict=True)])),
            "seconds": vars(Mean.of([seconds for _, seconds in rows])),
        }
        for name, rows in measured.items()
    }


def draw(result: Mapping[str, Any], title: str, file: Path) -> None:
    """The paper's figure: accuracy against seconds a question, with standard errors; RAG's points are joined."""
    from matplotlib import pyplot as plt

    figure, side = plt.subplots(figsize=(5, 3.4))
    for names in ([f"rag_{n}" for n in REFERENCES], [MEMORY], ["none"]):
        (y, y_error), (x, x_error) = (
            [[result[name][score][part] for name in names] for part in ("mean", "error")]
            for score in ("accuracy", "seconds")
        )
        side.errorbar(x, y, y_error, x_error, "o-", capsize=3)
        for name, point in zip(names, zip(x, y, strict=True), strict=True):
            side.annotate(f" {name}", point)
    side.margins(0.15)
    side.set(title=title, xlabel="processor seconds a question", ylabel="accuracy")
    figure.tight_layout()
    figure.savefig(file)


def professional(
    data: Annotated[Path, typer.Argument(help="File of PubMedQA or HaluEval.")],
    out: Annotated[Path, typer.Option(help="JSON to write, and a figure.")] = Path("build/professional.json"),
    model: terminal.ModelOption = None,
    embedder: terminal.EmbedderOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to ask; all texts are searched.")] = 1000,
    dropping: Annotated[bool, typer.Option(help="Drop references far below the best, as devices do.")] = False,
    threads: terminal.ThreadsOption = 1,
) -> None:
    """Compare memory with RAG of 3, 5 and 7 references on multiple choice: accuracy and seconds per question."""
    use_threads(threads)
    rows, subject = read_choices(data), Subject.open(model)
    loaded, memory = subject.loaded, subject.loaded.config.memory
    texts = dict.fromkeys(text for row in rows for text in row.texts)
    references = [r for t in texts for r in split(t, "", loaded.tokenizer.count, memory.reference_tokens)]
    with progress_bar("embedding", len(references)) as advance:
        base = ReferenceIndex.of(references, open_embedder(embedder, loaded.folder.embedder), advance)
    rows = rows[:limit]
    queries = [query_of(r.question, loaded.tokenizer, memory.chunk_tokens) for r in rows]
    found = base.nearest(queries, max(REFERENCES), dropping=dropping)
    arms = {"none": 0, MEMORY: memory.memories_per_chunk, **{f"rag_{n}": n for n in REFERENCES}}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    about = {"references": len(references), "threads": threads, "dropping": dropping, **subject.about()}
    with progress_bar("questions", len(rows)) as advance:
        for row, numbers in zip(rows, found, strict=True):  # all arms of a question in turn: load changes over time
            for name, count in arms.items():
                read = [references[n] for n in numbers[:count]]
                measured[name].append(answered(subject, row, read, name == MEMORY))
            write_json(out, about | summary(measured))
            advance()
    result = summary(measured)
    draw(result, data.stem, out.with_suffix(".svg"))
    table = Table("reads", "accuracy", "memory's is higher by", "seconds a question", title=data.name)
    for name, scores in result.items():
        table.add_row(name, *(f"{score['mean']:.3f} ± {score['error']:.3f}" for score in scores.values()))
    console.print(table)
