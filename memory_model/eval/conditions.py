"""Score a model's answers with and without memory: `memory-model eval`.

Conditions:

    none              the question alone
    memory            five memories, the right reference's among them, written, coded and decoded
    memory_exact      the same without the codec
    memory_retrieved  five memories that the question finds in a whole knowledge base, coded and decoded
    rag               the right reference as text before the question (no distractors: the stronger baseline)

The distractors are the row's own, or the knowledge of other rows; both given conditions read the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev

from memory_model.errors import InvalidInput
from memory_model.eval.memories import MemoryBank
from memory_model.eval.retrieval import CANDIDATES, KnowledgeBase, query_of
from memory_model.eval.rows import Row
from memory_model.eval.scores import exact_match, exact_values, is_refusal, says, token_f1
from memory_model.nn.generate import answer_nll, greedy
from memory_model.references import split

CONDITIONS = ("none", "memory", "memory_exact", "memory_retrieved", "rag")
Prompt = Callable[[str], list[int]]


@dataclass
class Scores:
    """What was measured under one condition: one number a row, or none where a score does not apply.

    nll: nats an answer token. exact_match, f1: SQuAD's. exact_values: share of numbers and names. two_way:
    the right answer is likelier than the hallucinated one. refused: says that it does not know.
    follows_memory, says_belief: of counterfactual rows. recall_at_k: the right reference was retrieved.
    """

    nll: list[float] = field(default_factory=list)
    exact_match: list[float] = field(default_factory=list)
    f1: list[float] = field(default_factory=list)
    exact_values: list[float] = field(default_factory=list)
    two_way: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    follows_memory: list[float] = field(default_factory=list)
    says_belief: list[float] = field(default_factory=list)
    recall_at_5: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    def add(self, row: Row, answer: str) -> None:
        """Score one answer."""
        self.answers.append(answer)
        self.exact_match.append(exact_match(answer, row.right_answer))
        self.f1.append(token_f1(answer, row.right_answer))
        self.refused.append(float(is_refusal(answer)))
        share = exact_values(answer, row.right_answer) if row.answerable else None
        if share is not None:
            self.exact_values.append(share)
        if row.believed_answer:
            self.follows_memory.append(float(says(answer, row.right_answer)))
            self.says_belief.append(float(says(answer, row.believed_answer)))

    def summary(self) -> dict[str, float]:
        """Means of the scores that apply."""
        return {k: round(fmean(v), 4) for k, v in vars(self).items() if k != "answers" and v}

    def point(self) -> dict[str, float]:
        """The summary with `f1_error`, the standard error of the mean F1: what a point of a curve is kept with."""
        spread = stdev(self.f1) if len(self.f1) > 1 else 0.0
        return {**self.summary(), "f1_error": round(spread / max(1, len(self.f1)) ** 0.5, 4)}


class Evaluation:
    """Holds the model and the data; `run` scores one condition after the other.

    knowledge_base: what `memory_retrieved` searches; candidates: how many of its references are put in order
    by their words too, 0 for none. prefix: token ids before every prompt; by default the
    modified BOS behind which memories were tuned to be read, `()` for a plain model that knows none.
    """

    def __init__(
        self, bank: MemoryBank, prompt: Prompt, rows: Sequence[Row], *, distractors: int = 4, seed: int = 0,
        batch: int = 10, knowledge_base: KnowledgeBase | None = None, candidates: int = CANDIDATES,
        prefix: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.bank, self.loaded, self.prompt = bank, bank.loaded, prompt
        self.rows, self.batch = list(rows), batch
        self.knowledge_base, self.candidates = knowledge_base, candidates
        self.prefix = self.loaded.writer.prefix if prefix is None else list(prefix)
        self.memories = self.loaded.config.memory.memories_per_chunk
        if not 0 <= distractors < self.memories:
            raise InvalidInput(f"distractors must be 0 to {self.memories - 1}, got {distractors}")
        self.given = self._given(distractors, random.Random(seed))

    def _given(self, distractors: int, rng: random.Random) -> list[list[str]]:
        """For each row the references that it reads under `memory` and `memory_exact`."""
        references: list[str] = []
        pieces: dict[str, list[int]] = {}
        for row in self.rows:
            if row.knowledge not in pieces:
                texts = self._references(row.knowledge)
                pieces[row.knowledge] = list(range(len(references), len(references) + len(texts)))
                references += texts
        given = []
        for row in self.rows:
            right = pieces[row.knowledge][: self.memories]
            room = min(distractors, self.memories - len(right))
            if row.distractors is not None:
                own = [text for d in row.distractors for text in self._references(d)][:room]
                texts = [*(references[n] for n in right), *own]
                given.append(rng.sample(texts, len(texts)))
                continue
            others = [n for n in range(len(references)) if n not in right]
            chosen = rng.sample(others, min(room, len(others)))
            given.append([references[n] for n in rng.sample([*right, *chosen], len(right) + len(chosen))])
        return given

    def _references(self, knowledge: str) -> list[str]:
        memory = self.loaded.config.memory
        if self.loaded.tokenizer.count(knowledge) <= memory.reference_tokens:
            return [knowledge]  # as it is: a reference keeps its line breaks
        return split(knowledge, "", self.loaded.tokenizer.count, memory.reference_tokens)

    @cached_property
    def retrieved(self) -> list[list[str]]:
        """For each row the references that its question finds in the knowledge base, best first."""
        base = self.knowledge_base
        if base is None:
            raise InvalidInput("memory_retrieved needs a knowledge base: give --knowledge-base")
        memory = self.loaded.config.memory
        asked = [query_of(r.question, self.loaded.tokenizer, memory.chunk_tokens) for r in self.rows]
        found = base.nearest(asked, self.memories, candidates=self.candidates)
        return [[base.references[n] for n in numbers] for numbers in found]

    def unwritten(self, conditions: Sequence[str]) -> int:
        """How many memories `write` has to write."""
        exact = self.bank.missing(self._exact(conditions), exact=True)
        return len(exact) + len(set(self.bank.missing(self.references(conditions))) - set(exact))

    def write(self, conditions: Sequence[str], progress: Callable[[int], None] | None = None) -> None:
        """Write the memories that the conditions read and the bank has not got.

        progress: called with the number of memories written since its last call.
        """
        self.bank.write(self._exact(conditions), exact=True, progress=progress)
        self.bank.write(self.references(conditions), progress=progress)

    def _exact(self, conditions: Sequence[str]) -> list[str]:
        return [text for row in self.given for text in row] if "memory_exact" in conditions else []

    def references(self, conditions: Sequence[str]) -> list[str]:
        """The references whose memories the conditions read, each once."""
        reads = self.given if {"memory", "memory_exact"} & set(conditions) else []
        if "memory_retrieved" in conditions:
            reads = [*reads, *self.retrieved]
        return list(dict.fromkeys(text for row in reads for text in row))

    def run(
        self, conditions: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> dict[str, Scores]:
        """Scores by condition; writes the memories that the bank has not got.

        progress: called with the number of answers since its last call. Raises InvalidInput for an unknown
        condition, or for memory_retrieved without a knowledge base.
        """
        unknown = set(conditions) - set(CONDITIONS)
        if unknown:
            raise InvalidInput(f"unknown conditions {sorted(unknown)}, choose from {CONDITIONS}")
        self.write(conditions)
        result = {}
        for condition in conditions:
            result[condition] = scores = Scores()
            for start in range(0, len(self.rows), self.batch):
                numbers = range(start, min(start + self.batch, len(self.rows)))
                self._score(condition, numbers, scores)
                if progress is not None:
                    progress(len(numbers))
            if condition == "memory_retrieved":
                pairs = zip(self.rows, self.retrieved, strict=True)
                scores.recall_at_5 = [float(row.knowledge in found) for row, found in pairs]
        return result

    def _score(self, condition: str, numbers: Sequence[int], scores: Scores) -> None:
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        rows = [self.rows[n] for n in numbers]
        memories = None
        if condition.startswith("memory"):
            reads = self.retrieved if condition == "memory_retrieved" else self.given
            memories = self.bank.read([reads[n] for n in numbers], exact=condition == "memory_exact")
        before = [f"{row.knowledge.strip()}\n\n" if condition == "rag" else "" for row in rows]
        prompts = [self.prompt(text + row.question) for text, row in zip(before, rows, strict=True)]
        stop = (tokenizer.eos_id, tokenizer.end_of_turn_id)
        for row, ids in zip(rows, greedy(model, prompts, self.prefix, memories, stop), strict=True):
            scores.add(row, tokenizer.decode(ids).strip())
        right = [[*tokenizer.encode(row.right_answer), tokenizer.end_of_turn_id] for row in rows]
        nll = answer_nll(model, prompts, right, self.prefix, memories)
        scores.nll += nll
        if all(row.hallucinated_answer for row in rows):
            wrong = [[*tokenizer.encode(row.hallucinated_answer), tokenizer.end_of_turn_id] for row in rows]
            wrong_nll = answer_nll(model, prompts, wrong, self.prefix, memories)
            scores.two_way += [float(a < b) for a, b in zip(nll, wrong_nll, strict=True)]
