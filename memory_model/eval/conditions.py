"""Score a model's answers with and without memory.

    none              the question alone
    memory            five memories, the right reference's among them, through the codec
    memory_exact      the same five without the codec
    rag_five          the texts of the same five references before the question, in the same order
    rag               the text of the right reference alone: no distractors, so an upper bound
    memory_retrieved  up to five memories that the question finds in a knowledge base as on a device, through the codec
    rag_retrieved     the texts of the same

`memory` and `rag_five`, `memory_retrieved` and `rag_retrieved` read the same references. The
distractors are the row's own, or the knowledge of other rows. No text is cut.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memory3.errors import InvalidInput
from memory3.text.references import split
from memory3.text.refusal import is_refusal
from memory_model.data.rows import QuestionRow
from memory_model.eval.retrieval import ReferenceIndex, query_of
from memory_model.eval.scores import Mean, Paired, contained, exact_match, token_f1
from memory_model.eval.subject import Subject
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.generate import FirstBias, greedy_and_nll

EVALUATOR = 3
"""Raised whenever prompts, conditions or scores change: results of another version do not compare."""
CONDITIONS = ("none", "memory", "memory_exact", "memory_retrieved", "rag", "rag_five", "rag_retrieved")
PAIRS = (
    ("memory", "rag_five"),
    ("memory", "rag"),
    ("memory_retrieved", "rag_retrieved"),
    ("memory_exact", "memory"),
    ("rag_five", "rag"),
)
"""Conditions that are compared row by row."""


@dataclass
class Scores:
    """What was measured under one condition: one number a row, or none where a score does not apply.

    sentence: with which the model refuses. nll: nats an answer token. exact_match, f1: SQuAD's, of the nearest right
    answer. contained: whether an answer has the words of a right one, of the rows that something answers. refused: is a
    refusal; refused_rightly, refused_wrongly: of the rows that nothing answers, and of the others. recall_at_5: the
    right reference was retrieved.
    """

    sentence: str
    nll: list[float] = field(default_factory=list)
    exact_match: list[float] = field(default_factory=list)
    f1: list[float] = field(default_factory=list)
    contained: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    refused_rightly: list[float] = field(default_factory=list)
    refused_wrongly: list[float] = field(default_factory=list)
    recall_at_5: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Sequence[QuestionRow], answers: Sequence[str], sentence: str) -> Scores:
        """All scores that follow from the answers' texts."""
        scores = cls(sentence)
        for row, answer in zip(rows, answers, strict=True):
            scores.add(row, answer)
        return scores

    def add(self, row: QuestionRow, answer: str) -> None:
        """Score one answer."""
        self.answers.append(answer)
        self.exact_match.append(max(exact_match(answer, right) for right in row.right_answers))
        self.f1.append(max(token_f1(answer, right) for right in row.right_answers))
        if row.answerable:
            self.contained.append(max(contained(answer, right) for right in row.right_answers))
        self.refused.append(float(is_refusal(answer, self.sentence)))
        (self.refused_wrongly if row.answerable else self.refused_rightly).append(self.refused[-1])

    def means(self) -> dict[str, Mean]:
        """Of the scores that apply; refused_rightly and refused_wrongly where there are rows of both kinds."""
        parts = {"refused_rightly", "refused_wrongly"}
        left_out = {"answers", "sentence"} | (set() if self.refused_rightly and self.refused_wrongly else parts)
        return {name: Mean.of(values) for name, values in vars(self).items() if values and name not in left_out}

    def summary(self) -> dict[str, float]:
        """Means by name, and the standard error of each as `NAME_error`: a condition in the JSON of `eval`."""
        return {key: v for name, m in self.means().items() for key, v in ((name, m.mean), (f"{name}_error", m.error))}


def compared(scores: Mapping[str, Scores], pairs: Sequence[tuple[str, str]] = PAIRS) -> dict[str, dict[str, Paired]]:
    """Paired differences and ratios, by "first - second" and score, of the pairs that were measured."""
    found = {}
    for first, second in pairs:
        if first in scores and second in scores:
            a, b = scores[first], scores[second]
            found[f"{first} - {second}"] = {
                name: Paired.of(getattr(a, name), getattr(b, name))
                for name in ("exact_match", "f1", "contained", "refused", "nll")
                if getattr(a, name) and len(getattr(a, name)) == len(getattr(b, name))
            }
    return found


def given_references(
    rows: Sequence[QuestionRow],
    count_tokens: Callable[[str], int],
    limit: int,
    memories: int,
    distractors: int,
    rng: random.Random,
) -> tuple[list[list[str]], list[list[str]]]:
    """For each row the references of its knowledge, and those that it reads where they are given.

    limit: tokens of a reference. memories: most references that a row reads. distractors: besides the right ones.
    """

    def references(knowledge: str, title: str) -> list[str]:
        whole = f"{title}\n{knowledge}" if title else knowledge
        fits = count_tokens(whole) <= limit
        return [whole] if fits else split(knowledge, title, count_tokens, limit)  # whole: with line breaks

    pieces = {(row.knowledge, row.title): references(row.knowledge, row.title) for row in rows}
    every = [text for texts in pieces.values() for text in texts]
    given = []
    for row in rows:
        own = pieces[row.knowledge, row.title]
        right = own[:memories]
        room = min(distractors, memories - len(right))
        if row.distractors is None:
            others = [text for text in every if text not in own]
            chosen = rng.sample(others, min(room, len(others)))
        else:
            chosen = [text for d in row.distractors for text in references(d, row.title)][:room]
        given.append(rng.sample([*right, *chosen], len(right) + len(chosen)))
    return [pieces[row.knowledge, row.title] for row in rows], given


class Evaluation:
    """Holds the model and the data; `run` scores one condition after the other.

    distractors: references besides the right one. knowledge_base: what the retrieved conditions search. Raises
    InvalidInput for conditions that a plain model cannot have, or that need a knowledge base.
    """

    def __init__(
        self,
        subject: Subject,
        rows: Sequence[QuestionRow],
        conditions: Sequence[str],
        *,
        distractors: int = 4,
        seed: int = 0,
        batch: int = 20,
        knowledge_base: ReferenceIndex | None = None,
    ) -> None:
        parse_conditions(",".join(conditions), plain=not subject.prefix)
        if knowledge_base is None and any(c.endswith("_retrieved") for c in conditions):
            raise InvalidInput("retrieved conditions need a knowledge base: give --kb")
        self.subject, self.rows, self.conditions = subject, list(rows), list(conditions)
        self.loaded, self.bank = subject.loaded, subject.bank
        self.bank.keeps_exact |= "memory_exact" in conditions
        self.batch, self.knowledge_base = batch, knowledge_base
        self.memories = self.loaded.config.memory.memories_per_chunk
        if not 0 <= distractors < self.memories:
            raise InvalidInput(f"distractors must be 0 to {self.memories - 1}, got {distractors}")
        limit, count = self.loaded.config.memory.reference_tokens, self.loaded.tokenizer.count
        _, self.given = given_references(rows, count, limit, self.memories, distractors, random.Random(seed))

    @cached_property
    def retrieved(self) -> list[list[str]]:
        """For each row the references that its question finds in the knowledge base, best first."""
        base, memory = self.knowledge_base, self.loaded.config.memory
        assert base is not None
        queries = [query_of(r.question, self.loaded.tokenizer, memory.chunk_tokens) for r in self.rows]
        return [[base.references[n] for n in numbers] for numbers in base.nearest(queries, self.memories)]

    def reads(self, condition: str) -> list[list[str]]:
        """For each row the references that it reads under a condition, as memories or as texts."""
        if condition == "none":
            return [[] for _ in self.rows]
        if condition == "rag":
            return [[f"{r.title}\n{r.knowledge.strip()}".strip()] for r in self.rows]
        return self.retrieved if condition.endswith("_retrieved") else self.given

    def run(self, progress: Callable[[int], None] = lambda _: None) -> dict[str, Scores]:
        """Scores by condition; progress: called with the number of answers since its last call."""
        result = {}
        for condition in self.conditions:
            result[condition] = scores = Scores(self.subject.refusal.sentence)
            for rows, prompts, memories in self.batches(condition):
                self._score(rows, prompts, memories, scores)
                progress(len(rows))
            if condition.endswith("_retrieved"):
                found = zip(self.rows, self.retrieved, strict=True)
                scores.recall_at_5 = [float(any(_holds(t, row) for t in texts)) for row, texts in found]
        return result

    def batches(self, condition: str) -> Iterator[tuple[list[QuestionRow], list[list[int]], MemoryBatch | None]]:
        """Rows, their prompts as token ids, and the memories that they read."""
        every = self.reads(condition)
        for start in range(0, len(self.rows), self.batch):
            rows, reads = self.rows[start : start + self.batch], every[start : start + self.batch]
            memories = None
            if condition.startswith("memory"):
                memories, reads = self.bank.read(reads, exact=condition == "memory_exact"), [[] for _ in rows]
            before = ["".join(f"{text.strip()}\n\n" for text in texts) for texts in reads]
            prompts = [self.subject.prompt(text + row.question) for text, row in zip(before, rows, strict=True)]
            yield rows, prompts, memories

    def _score(
        self, rows: Sequence[QuestionRow], prompts: Sequence[list[int]], memories: MemoryBatch | None, scores: Scores
    ) -> None:
        model, tokenizer, chat, prefix = self.loaded.model, self.loaded.tokenizer, self.loaded.chat, self.subject.prefix
        refusal = self.subject.refusal
        counts = memories.valid.any(-1).sum((1, 2)).tolist() if memories else [0] * len(rows)
        biases = [refusal.bias_for(n) for n in counts]
        bias = FirstBias(refusal.first_token(chat), biases, counts, self.subject.probe)
        right = [[*chat.encode_answer(row.right_answer), tokenizer.end_of_turn_id] for row in rows]
        answers, nll = greedy_and_nll(model, prompts, right, prefix, memories, tokenizer.stop_ids, first_bias=bias)
        for row, ids in zip(rows, answers, strict=True):
            scores.add(row, tokenizer.decode(ids).strip())
        scores.nll += nll


def parse_conditions(text: str, plain: bool = False) -> list[str]:
    """`none,memory` as names; raises InvalidInput for one that is unknown, or that a plain model cannot have."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := ", ".join(sorted({*names} - {*CONDITIONS})):
        raise InvalidInput(f"no condition is called {unknown}: choose from {', '.join(CONDITIONS)}")
    if plain and any(name.startswith("memory") for name in names):
        raise InvalidInput("the plain model reads no memories: use --conditions none,rag,rag_five")
    return names


def _holds(reference: str, row: QuestionRow) -> bool:
    """Whether a reference is the row's knowledge, or the part of it with a right answer."""
    body = " ".join(reference.partition("\n")[2].split())
    whole, knowledge = " ".join(reference.split()), " ".join(row.knowledge.split())
    if knowledge in whole:
        return True
    return bool(body) and body in knowledge and any(right in body for right in row.right_answers)


def result_of(scores: Mapping[str, Scores], rows: Sequence[QuestionRow]) -> dict[str, Any]:
    """What `eval --json` writes of them: means and errors by condition, pairs, and every answer."""
    answers = [
        {
            "question": row.question,
            "right_answer": row.right_answer,
            **{condition: found.answers[n] for condition, found in scores.items()},
        }
        for n, row in enumerate(rows)
    ]
    pairs = {name: {score: vars(p) for score, p in by.items()} for name, by in compared(scores).items()}
    conditions = {condition: found.summary() for condition, found in scores.items()}
    return {"rows": len(rows), "conditions": conditions, "pairs": pairs, "answers": answers}
