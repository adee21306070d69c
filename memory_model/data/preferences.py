"""Pairs of answers that read the same memories, of which one is preferred (paper 6.2): by rule, without annotators.

Of training data only: what facts and paragraphs say wins over the same of another subject that is read, over what the
model says without memory, and over "I don't know."; that wins where nothing read answers, over what seems to be it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memory_model.data.alike import AlikeConversations, Articles, HardFacts
from memory_model.data.batches import Batch
from memory_model.data.conversations import REFUSAL, Conversation, Conversations, Reference, field_of
from memory_model.data.factbook import Question, refers_to


@dataclass(frozen=True)
class Pair:
    """A question, the references that are read (numbers in the batch), and two answers."""

    read: Sequence[int]
    question: str
    chosen: str
    rejected: str


class Preferences(Conversations):
    """Batches of pairs, each from one source: facts of one field, or paragraphs of one article.

    unread: wrong answers of the model without memory, by question. A pair is two rows, the chosen answer's first.
    """

    task = "preferences"

    def __init__(self, facts: HardFacts, articles: Articles, unread: Mapping[str, str], seed: int) -> None:
        super().__init__(facts.chat, seed, facts.sizes, distil=False)
        self.sources: tuple[AlikeConversations, ...] = (facts, articles)
        self.source, self.unread, self.plausible = self.sources[0], unread, articles.plausible

    def draw(self) -> list[Reference]:
        """The references of a batch of one source."""
        self.source = self.random.choice(self.sources)
        return self.source.draw()

    def next(self) -> Batch:
        """One batch, of two rows for each pair."""
        return replace(super().next(), preferences=True)

    def conversations(self, written: Sequence[Reference]) -> list[Conversation]:
        """Both rows of every pair."""
        rows = []
        for pair in self.pairs(written):
            for answer in (pair.chosen, pair.rejected):
                rows.append(self._row(written, pair.read, [(pair.question, answer)], []))
        return rows

    def pairs(self, written: Sequence[Reference]) -> list[Pair]:
        """A batch's pairs; one in which the refusal wins is followed by one in which it loses, with the same read."""
        rng, found = self.random, list[Pair]()
        holding = self.source.places(written)
        while len(found) < self.sizes.conversations:
            none = self.source.unanswered(written) if rng.random() < self.source.refused_share else None
            if none is not None and (seeming := self._seeming(written, *none)):
                read = none[0]
                found.append(Pair(read, none[1], REFUSAL, seeming))
                asked = self.source.ask(written[rng.choice([n for n in read if written[n].questions])])
                found.append(Pair(read, asked.question, asked.answer, REFUSAL))
                continue
            read = rng.sample(holding, min(self.sizes.memories, len(holding)))
            number = rng.choice(read)
            asked = self.source.ask(written[number])
            wrong = [self.unread.get(asked.question), self._another(written, read, asked, written[number])]
            found.append(Pair(read, asked.question, asked.answer, rng.choice([w for w in wrong if w] or [REFUSAL])))
        return found[: self.sizes.conversations]

    def _seeming(self, written: Sequence[Reference], read: Sequence[int], question: str) -> str | None:
        """What a careless reader answers to what nothing read answers."""
        absent = getattr(self.source, "absent", None)
        return self.plausible.get(question) or (self._another(written, read, absent) if absent else None)

    def _another(
        self, written: Sequence[Reference], read: Sequence[int], asked: Question, own: Reference | None = None
    ) -> str | None:
        """What another reference that is read says of the same field; of paragraphs, whatever was asked about one."""
        others = [ways[0] for n in read if written[n] is not own for ways in written[n].questions]
        alike = [q for q in others if field_of(q) == field_of(asked)] or others
        wrong = [q.answer for q in alike if not refers_to(own.text if own else "", q)]
        right = asked.answer.lower()
        wrong = [answer for answer in wrong if right not in answer.lower() and answer.lower() not in right]
        return self.random.choice(wrong) if wrong else None

    def state(self) -> Any:
        """Of this source and of both that it draws from."""
        return [super().state(), *(source.state() for source in self.sources)]

    def restore(self, state: Any) -> None:
        """Go on from a state."""
        super().restore(state[0])
        for source, own in zip(self.sources, state[1:], strict=True):
            source.restore(own)
