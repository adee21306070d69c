"""Score a model's answers with and without memory: `memory-model eval`.

Rows are {knowledge, question, right_answer, hallucinated_answer?}. Conditions:

    none           the question alone
    memory         five memories, one of them the right reference's, written, coded and decoded
    memory_exact   the same without the codec
    rag            the right reference as text before the question (no distractors: the stronger baseline)

The distractors are the knowledge of other rows, the same for both memory conditions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch

from memory_model.errors import InvalidInput
from memory_model.evaluation.scores import exact_match, token_f1
from memory_model.memory import ExplicitMemory, MemoryFormat
from memory_model.nn.generate import answer_nll, greedy
from memory_model.nn.load import LoadedModel
from memory_model.nn.model import MemoryBatch
from memory_model.references import split

CONDITIONS = ("none", "memory", "memory_exact", "rag")
Prompt = Callable[[str], list[int]]


@dataclass(frozen=True)
class Row:
    """One question with the text that answers it."""

    knowledge: str
    question: str
    right_answer: str
    hallucinated_answer: str = ""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """A row of a data file; raises InvalidInput when a field is missing or not a text."""
        try:
            row = cls(
                data["knowledge"], data["question"], data["right_answer"], data.get("hallucinated_answer", "")
            )
        except (KeyError, TypeError) as error:
            raise InvalidInput(
                f"an evaluation row needs knowledge, question and right_answer: {error}"
            ) from error
        if (
            not all(isinstance(v, str) for v in vars(row).values())
            or not row.question
            or not row.knowledge.strip()
        ):
            raise InvalidInput(
                "an evaluation row's fields must be texts, and knowledge and question not empty"
            )
        return row


@dataclass
class Scores:
    """What was measured under one condition."""

    nll: list[float] = field(default_factory=list)
    exact_match: list[float] = field(default_factory=list)
    f1: list[float] = field(default_factory=list)
    two_way: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Means; two_way only where rows had a hallucinated answer."""
        return {k: round(fmean(v), 4) for k, v in vars(self).items() if k != "answers" and v}


class Evaluation:
    """Holds the model and the data; `run` scores one condition after the other."""

    def __init__(
        self, loaded: LoadedModel, codec_format: MemoryFormat, prompt: Prompt, rows: Sequence[Row],
        *, distractors: int = 4, seed: int = 0, batch: int = 10,
    ) -> None:  # fmt: skip
        self.loaded, self.format, self.prompt, self.rows, self.batch = (
            loaded,
            codec_format,
            prompt,
            list(rows),
            batch,
        )
        memories = loaded.config.memory.memories_per_chunk
        if not 0 <= distractors < memories:
            raise InvalidInput(f"distractors must be 0 to {memories - 1}, got {distractors}")
        rng = random.Random(seed)
        self.references: list[str] = []
        pieces: dict[str, list[int]] = {}
        for row in self.rows:
            if row.knowledge not in pieces:
                texts = self._references(row.knowledge)
                pieces[row.knowledge] = list(range(len(self.references), len(self.references) + len(texts)))
                self.references += texts
        self.reads: list[list[int]] = []
        for row in self.rows:
            right = pieces[row.knowledge][:memories]
            others = [n for n in range(len(self.references)) if n not in right]
            count = min(distractors, memories - len(right), len(others))
            self.reads.append(rng.sample([*right, *rng.sample(others, count)], len(right) + count))

    def _references(self, knowledge: str) -> list[str]:
        memory = self.loaded.config.memory
        if self.loaded.tokenizer.count(knowledge) <= memory.reference_tokens:
            return [knowledge]  # as it is: a reference keeps its line breaks
        return split(knowledge, "", self.loaded.tokenizer.count, memory.reference_tokens)

    def run(
        self, conditions: Sequence[str] = CONDITIONS, progress: Callable[[int], None] | None = None
    ) -> dict[str, Scores]:
        """Scores by condition; raises InvalidInput for an unknown one."""
        unknown = set(conditions) - set(CONDITIONS)
        if unknown:
            raise InvalidInput(f"unknown conditions {sorted(unknown)}, choose from {CONDITIONS}")
        memories: dict[str, list[ExplicitMemory]] = {}
        if "memory" in conditions or "memory_exact" in conditions:
            exact = self.loaded.writer.write(self.references)
            memories["memory_exact"] = exact
            if "memory" in conditions:
                memories["memory"] = self.format.decode(self.format.encode(exact))
        result = {}
        for condition in conditions:
            result[condition] = scores = Scores()
            for start in range(0, len(self.rows), self.batch):
                self._score(
                    condition, range(start, min(start + self.batch, len(self.rows))), memories, scores
                )
                if progress is not None:
                    progress(min(self.batch, len(self.rows) - start))
        return result

    def _score(
        self,
        condition: str,
        numbers: Sequence[int],
        memories: dict[str, list[ExplicitMemory]],
        scores: Scores,
    ) -> None:
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        rows = [self.rows[n] for n in numbers]
        batch = None
        if condition in memories:
            batch = stack_memories(
                [[memories[condition][m] for m in self.reads[n]] for n in numbers], self.loaded
            )
        before = [f"{row.knowledge.strip()}\n\n" if condition == "rag" else "" for row in rows]
        prompts = [self.prompt(text + row.question) for text, row in zip(before, rows, strict=True)]
        prefix = self.loaded.writer.prefix
        stop = (tokenizer.eos_id, tokenizer.end_of_turn_id)
        for row, ids in zip(rows, greedy(model, prompts, prefix, batch, stop), strict=True):
            answer = tokenizer.decode(ids).strip()
            scores.answers.append(answer)
            scores.exact_match.append(exact_match(answer, row.right_answer))
            scores.f1.append(token_f1(answer, row.right_answer))
        right = [[*tokenizer.encode(row.right_answer), tokenizer.end_of_turn_id] for row in rows]
        nll = answer_nll(model, prompts, right, prefix, batch)
        scores.nll += nll
        if all(row.hallucinated_answer for row in rows):
            wrong = [[*tokenizer.encode(row.hallucinated_answer), tokenizer.end_of_turn_id] for row in rows]
            wrong_nll = answer_nll(model, prompts, wrong, prefix, batch)
            scores.two_way += [float(a < b) for a, b in zip(nll, wrong_nll, strict=True)]


def stack_memories(memories: Sequence[Sequence[ExplicitMemory]], loaded: LoadedModel) -> MemoryBatch:
    """Memories of B conversations as tensors with leading dimensions [B, 1, m]; missing ones are not valid."""
    config = loaded.config
    B, most = len(memories), max((len(m) for m in memories), default=0)
    shape = (B, 1, most, config.memory.budget, config.head_dim)
    keys, values, valid = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape[:-1], dtype=torch.bool)
    for b, row in enumerate(memories):
        for m, memory in enumerate(row):
            keys[b, 0, m], values[b, 0, m] = torch.from_numpy(memory.keys), torch.from_numpy(memory.values)
            valid[b, 0, m, torch.from_numpy(config.memory.valid_rows(memory.tokens))] = True
    return MemoryBatch(keys, values, valid)


def report(
    result: dict[str, Scores], rows: Sequence[Row], loaded: LoadedModel, seconds: float
) -> dict[str, Any]:
    """JSON-ready results with every answer, so that a figure can be looked into."""
    listing = [
        {
            "question": row.question,
            "right_answer": row.right_answer,
            **{c: s.answers[n] for c, s in result.items()},
        }
        for n, row in enumerate(rows)
    ]
    return {
        "model": loaded.config.name,
        "model_id": loaded.model_id,
        "rows": len(rows),
        "seconds": round(seconds, 1),
        "date": time.strftime("%Y-%m-%d"),
        "conditions": {c: s.summary() for c, s in result.items()},
        "answers": listing,
    }


def read_rows(data: Any, limit: int | None) -> Iterator[Row]:
    """Rows of a parsed data file; raises InvalidInput when it is no list of rows."""
    if not isinstance(data, list) or not data:
        raise InvalidInput("an evaluation file is a JSON list of {knowledge, question, right_answer}")
    for item in data[:limit]:
        yield Row.from_dict(item)
