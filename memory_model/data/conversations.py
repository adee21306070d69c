"""Conversations that ask about memories: one among near misses answers, or none does.

A batch writes N references once; every conversation reads five of them (or fewer) and asks about some. Retrieval
returns near misses, so references come in families (several of one document) and, for facts, in topics (the same field
of different documents). Some conversations have the reference as text instead, so that reading text is not unlearned.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memory3.errors import InvalidInput
from memory3.text.chat import ChatTemplate
from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory_model.data import factbook
from memory_model.data.batches import IGNORE, Batch, conversation_tokens
from memory_model.data.factbook import Question
from memory_model.data.passages import PassageQuestion
from memory_model.nn.writing import pad_ids

Turns = Sequence[tuple[str, str]]
"""Questions and answers."""
BRIEFLY = "Answer as briefly as possible, in the words of the text."
"""Instruction to the teacher of distillation, so that its answers have the form of the ones that people wrote."""
_MOST_ALIKE = 6  # references of a batch of facts that hold its topic


@dataclass(frozen=True)
class TrainingReference:
    """A reference of the training knowledge base with its questions, each in several wordings."""

    family: int
    text: str
    ids: list[int]
    questions: list[list[Question]]


@dataclass(frozen=True)
class Sizes:
    """How big a batch is and how its conversations are mixed.

    Shares of the conversations: as_text, with the reference as text instead of a memory; where references are similar
    (`data.hard_negatives`) refused and refused_articles, which no memory answers, with as many answerable twins, and
    all_as_text, with everything that is read as text. distilled: of those with one question that read memories, the
    share whose answer the model without its adapter predicts from the right reference as text. ramp: batches until all
    the memories of a chunk are read, 0 from the first. longest: tokens of a reference.
    """

    written: int = 10
    conversations: int = 10
    turns: int = 3
    memories: int = 5
    as_text: float = 0.12
    refused: float = 0.12
    refused_articles: float = 0.12
    all_as_text: float = 0.2
    distilled: float = 0.0
    ramp: int = 150
    longest: int = 128


@dataclass(frozen=True)
class Example:
    """One training example: tokens, labels and the references that the conversation reads, -1 for none.

    teacher: ids and labels of the same answer after the right reference as text; None: nothing is distilled.
    """

    ids: list[int]
    labels: list[int]
    slots: list[int]
    teacher: tuple[list[int], list[int]] | None = None


class Conversations(ABC):
    """Batches of conversations; a subclass draws the references. Deterministic for a seed."""

    task: str

    def __init__(self, chat: ChatTemplate, seed: int, sizes: Sizes) -> None:
        self.chat, self.sizes = chat, sizes
        self.random, self.drawn = random.Random(seed), 0

    @abstractmethod
    def draw(self) -> list[TrainingReference]:
        """The references of one batch, each with at least one question."""

    def ask(self, reference: TrainingReference) -> Question:
        """One of the questions that a reference of the batch answers, in one of its wordings."""
        return self.random.choice(self.random.choice(reference.questions))

    def next(self) -> Batch:
        """One batch."""
        self.drawn += 1
        written = self.draw()
        rows = self.conversations(written)
        reference_ids, lengths = pad_ids([r.ids for r in written])
        ids, _ = pad_ids([r.ids for r in rows])
        labels, _ = pad_ids([r.labels for r in rows], IGNORE)
        taught = [(n, r.labels, r.teacher) for n, r in enumerate(rows) if r.teacher is not None]
        kept = [(n, column) for n, own, _ in taught for column in _predicting(own)]
        source = [(n, column) for n, (_, _, teacher) in enumerate(taught) for column in _predicting(teacher[1])]
        return Batch(
            reference_ids,
            lengths,
            ids,
            labels,
            torch.tensor([r.slots for r in rows])[:, None],
            torch.zeros_like(ids),
            task=self.task,
            kept=torch.tensor(kept) if taught else None,
            teacher_ids=pad_ids([teacher[0] for _, _, teacher in taught])[0] if taught else None,
            taught=torch.tensor(source) if taught else None,
        )

    def state(self) -> Any:
        """The random generator's state and the number of batches so far."""
        return {"random": self.random.getstate(), "drawn": self.drawn}

    def restore(self, state: Any) -> None:
        """Go on from a state."""
        self.random.setstate(state["random"])
        self.drawn = state["drawn"]

    def conversations(self, written: Sequence[TrainingReference]) -> list[Example]:
        """The conversations of one batch."""
        return [self._conversation(written) for _ in range(self.sizes.conversations)]

    def _conversation(self, written: Sequence[TrainingReference]) -> Example:
        rng, sizes = self.random, self.sizes
        count = sizes.memories if rng.random() < 0.8 else rng.randint(1, sizes.memories)
        read = rng.sample(range(len(written)), min(count, len(written)))
        as_text = rng.random() < sizes.as_text
        sources = [rng.choice(read) for _ in range(1 if as_text else rng.randint(1, sizes.turns))]
        turns = [(question.question, question.answer) for question in (self.ask(written[n]) for n in sources)]
        return self._as_text(written, sources, turns[0]) if as_text else self._row(read, turns, written[sources[0]])

    def _as_text(self, written: Sequence[TrainingReference], shown: Sequence[int], turn: tuple[str, str]) -> Example:
        """One question that reads no memory: the references precede it."""
        texts = [written[number].text for number in shown]
        ids, labels = conversation_tokens(self.chat, [("\n\n".join([*texts, turn[0]]), turn[1])])
        return Example(ids, labels, [-1] * self.sizes.memories)

    def _row(self, read: Sequence[int], turns: Turns, source: TrainingReference | None = None) -> Example:
        """A conversation that reads memories. source: the reference that answers its first question."""
        slots = [*read, *[-1] * (self.sizes.memories - len(read))]
        ids, labels = conversation_tokens(self.chat, turns)
        teacher = None
        if source is not None and len(turns) == 1 and self.random.random() < self.sizes.distilled:
            teacher = conversation_tokens(self.chat, [(f"{source.text}\n\n{turns[0][0]}\n{BRIEFLY}", turns[0][1])])
        return Example(ids, labels, slots, teacher)


def _predicting(labels: Sequence[int]) -> list[int]:
    """Columns of the tokens that predict what is learned."""
    return [column - 1 for column, label in enumerate(labels) if label != IGNORE]


def references_of(
    documents: Sequence[dict[str, str]], tokenizer: Tokenizer, limit: int = 128
) -> list[TrainingReference]:
    """All references of documents of facts (`data/factbook.jsonl`), with their questions."""
    result = []
    for family, document in enumerate(documents):
        for text in split(document["text"], document["title"], tokenizer.count, limit):
            questions = factbook.questions(document["title"], text)
            result.append(TrainingReference(family, text, tokenizer.encode(text), questions))
    return result


class FactConversations(Conversations):
    """Questions for facts, among references of the same document and of the same field.

    A batch has a topic, a field that one to many of its references hold for different documents, and most questions
    ask for it: only the document's name tells them apart. whole: the share of references that are read as they are
    split; the others keep some of their lines, half of them as prose.
    """

    task = "facts"
    on_topic = 0.75
    """Share of the questions that ask for the batch's field, where the reference holds it."""

    def __init__(
        self, references: Sequence[TrainingReference], chat: ChatTemplate, seed: int, sizes: Sizes, whole: float = 0.7
    ) -> None:
        super().__init__(chat, seed, sizes)
        self.references, self.whole = [r for r in references if r.questions], whole
        self.families: dict[int, list[int]] = {}
        self.fields: dict[str, list[int]] = {}
        for number, reference in enumerate(self.references):
            self.families.setdefault(reference.family, []).append(number)
            for ways in reference.questions:
                self.fields.setdefault(ways[0].field, []).append(number)
        self.topic = ""
        self.topics = {f for f, numbers in self.fields.items() if len(numbers) >= 4}

    def draw(self) -> list[TrainingReference]:
        """References of one field, two others of each of two of their documents, the rest at random."""
        rng, size = self.random, self.sizes.written
        families = sorted(self.families)
        self._lead()
        holding = self.fields.get(self.topic, [])
        chosen = dict.fromkeys(rng.sample(holding, min(rng.randint(1, _MOST_ALIKE), len(holding), size)))
        for number in list(chosen)[:2]:
            others = [n for n in self.families[self.references[number].family] if n not in chosen]
            chosen |= dict.fromkeys(rng.sample(others, min(2, len(others), size - len(chosen))))
        while len(chosen) < min(size, len(self.references)):
            chosen[rng.choice(self.families[rng.choice(families)])] = None
        return [self._varied(self.references[n]) for n in sorted(chosen)]

    def ask(self, reference: TrainingReference) -> Question:
        """Mostly for the batch's topic, where the reference holds it."""
        held = [ways for ways in reference.questions if ways[0].field == self.topic]
        if held and self.random.random() < self.on_topic:
            return self.random.choice(held[0])
        return super().ask(reference)

    def _lead(self) -> int | None:
        """A random document, of which a field becomes the topic: countries, with most fields, do not prevail."""
        lead = self.references[self.random.choice(self.families[self.random.choice(sorted(self.families))])]
        held = [ways[0].field for ways in lead.questions if ways[0].field in self.topics]
        self.topic = self.random.choice(held) if held else ""
        return lead.family if held else None

    def _varied(self, reference: TrainingReference) -> TrainingReference:
        rng = self.random
        if rng.random() < self.whole:
            return reference
        title, *lines = reference.text.splitlines()
        size = rng.randint(1, min(4, len(lines)))
        topic = next((n for n, line in enumerate(lines) if line.startswith(f"{self.topic}: ")), None)
        first, last = 0, len(lines) - size
        if topic is not None:  # the line with the requested field stays
            first, last = max(0, topic - size + 1), min(last, topic)
        start = rng.randint(first, last)
        kept = lines[start : start + size]
        questions = [ways for ways in reference.questions if ways[0].line in kept]
        if not questions:
            return reference
        if rng.random() < 0.5:
            text = f"{title}\n" + "\n".join(kept)
        else:
            text = " ".join(factbook.sentence(title, line, rng) for line in kept)
        ids = self.chat.tokenizer.encode(text)
        return reference if len(ids) > self.sizes.longest else TrainingReference(reference.family, text, ids, questions)


class PassageConversations(Conversations):
    """People's questions about passages (`passages.PASSAGE_QUESTIONS`)."""

    task = "questions"

    def __init__(self, rows: Sequence[PassageQuestion], chat: ChatTemplate, seed: int, sizes: Sizes) -> None:
        super().__init__(chat, seed, sizes)
        by_text: dict[str, list[PassageQuestion]] = {}
        for row in rows:
            by_text.setdefault(row.text, []).append(row)
        self.references: list[TrainingReference] = []
        for number, (text, own) in enumerate(by_text.items()):
            ids = chat.tokenizer.encode(text)
            if len(ids) <= sizes.longest:
                questions = [[Question(r.question, r.answer, text)] for r in own]
                self.references.append(TrainingReference(number, text, ids, questions))
        if not self.references:
            raise InvalidInput("the corpus has no passage for any question: prepare it with more sources")

    def draw(self) -> list[TrainingReference]:
        """Random references."""
        return self.random.sample(self.references, min(self.sizes.written, len(self.references)))
