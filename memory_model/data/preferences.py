"""Pairs of answers that read the same memories, of which one is preferred (paper 6.2): by rule, without annotators.

Made of training data only. The answer in the facts or the paragraph is preferred to that of another subject that is
read, to the model's answer without memory, and to "I don't know."; where nothing read answers, that refusal is
preferred to what seems to be the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memory3.text.refusal import SENTENCE
from memory_model.data.batches import Batch
from memory_model.data.conversations import Conversations, Example, TrainingReference
from memory_model.data.factbook import Question, refers_to
from memory_model.data.hard_negatives import Articles, HardFacts, HardNegativeConversations

Pair = tuple[Sequence[int], str, str, str]
"""References that are read (numbers in the batch), a question, the chosen and the rejected answer."""


class Preferences(Conversations):
    """Batches of pairs, each from one source: facts of one field, or paragraphs of one article.

    closed_book: wrong answers of the model without memory, by question. A pair is two rows, the chosen answer's first.
    """

    task = "preferences"

    def __init__(self, facts: HardFacts, articles: Articles, closed_book: Mapping[str, str], seed: int) -> None:
        super().__init__(facts.chat, seed, facts.sizes)
        self.sources: tuple[HardNegativeConversations, ...] = (facts, articles)
        self.source: HardNegativeConversations = facts
        self.closed_book = closed_book
        for source in self.sources:
            source.random = self.random  # one state for all

    def draw(self) -> list[TrainingReference]:
        """The references of a batch of one source."""
        self.source = self.random.choice(self.sources)
        return self.source.draw()

    def next(self) -> Batch:
        """One batch, of two rows for each pair."""
        return replace(super().next(), preferences=True)

    def conversations(self, written: Sequence[TrainingReference]) -> list[Example]:
        """Both rows of every pair."""
        pairs = self.pairs(written)
        return [self._row(read, [(q, answer)]) for read, q, *answers in pairs for answer in answers]

    def pairs(self, written: Sequence[TrainingReference]) -> list[Pair]:
        """A batch's pairs; one in which the refusal wins is followed by one in which it loses, with the same read."""
        rng, found, candidates = self.random, list[Pair](), self.source.candidates(written)
        while len(found) < self.sizes.conversations:
            none = self.source.unanswered(written) if rng.random() < self.source.refused_share else None
            read = none[0] if none else rng.sample(candidates, min(self.sizes.memories, len(candidates)))
            number = rng.choice([n for n in read if written[n].questions])
            question = self.source.ask(written[number])
            wrong = [self.closed_book.get(question.question), self._another(written, read, question, number)]
            if none:
                wrong, absent = [], none[1]
                seeming = self._another(written, read, absent) if absent.line else absent.answer
                found += [(read, absent.question, SENTENCE, seeming)] if seeming else []
            found.append((read, question.question, question.answer, rng.choice([w for w in wrong if w] or [SENTENCE])))
        return found[: self.sizes.conversations]

    def _another(
        self, written: Sequence[TrainingReference], read: Sequence[int], question: Question, own: int = -1
    ) -> str | None:
        """The answer of another reference that is read to the same field; of paragraphs, to any of its questions."""
        others = [ways[0] for n in read if n != own for ways in written[n].questions]
        similar = [q for q in others if q.field == question.field] or others
        text = question.answer + (f"\n{written[own].text}" if own >= 0 else "")
        wrong = [q.answer for q in similar if not refers_to(text, q) and question.answer not in q.answer]
        return self.random.choice(wrong) if wrong else None
