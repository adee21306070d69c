"""Pairs of answers that read the same memories, of which one is preferred (paper 6.2): by rule, without annotators.

Of training data only: what facts and paragraphs say wins over the same of another subject that is read, over what the
model says without memory, and over "I don't know."; that wins where nothing read answers, over what seems to be it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memory3.refusal import SENTENCE
from memory_model.data.alike import AlikeConversations, Articles, HardFacts
from memory_model.data.batches import Batch
from memory_model.data.conversations import Conversation, Conversations, Reference
from memory_model.data.factbook import Question, refers_to

Pair = tuple[Sequence[int], str, str, str]
"""References that are read (numbers in the batch), a question, the chosen and the rejected answer."""


class Preferences(Conversations):
    """Batches of pairs, each from one source: facts of one field, or paragraphs of one article.

    unread: wrong answers of the model without memory, by question. A pair is two rows, the chosen answer's first.
    """

    task = "preferences"

    def __init__(self, facts: HardFacts, articles: Articles, unread: Mapping[str, str], seed: int) -> None:
        super().__init__(facts.chat, seed, facts.sizes)
        self.sources: tuple[AlikeConversations, ...] = (facts, articles)
        self.source: AlikeConversations = facts
        self.unread = unread
        for source in self.sources:
            source.random = self.random  # one state for all

    def draw(self) -> list[Reference]:
        """The references of a batch of one source."""
        self.source = self.random.choice(self.sources)
        return self.source.draw()

    def next(self) -> Batch:
        """One batch, of two rows for each pair."""
        return replace(super().next(), preferences=True)

    def conversations(self, written: Sequence[Reference]) -> list[Conversation]:
        """Both rows of every pair."""
        pairs = self.pairs(written)
        return [self._row(read, [(q, answer)]) for read, q, *answers in pairs for answer in answers]

    def pairs(self, written: Sequence[Reference]) -> list[Pair]:
        """A batch's pairs; one in which the refusal wins is followed by one in which it loses, with the same read."""
        rng, found, holding = self.random, list[Pair](), self.source.places(written)
        while len(found) < self.sizes.conversations:
            none = self.source.unanswered(written) if rng.random() < self.source.refused_share else None
            read = none[0] if none else rng.sample(holding, min(self.sizes.memories, len(holding)))
            number = rng.choice([n for n in read if written[n].questions])
            asked = self.source.ask(written[number])
            wrong = [self.unread.get(asked.question), self._another(written, read, asked, number)]
            if none:
                wrong, absent = [], none[1]
                seeming = self._another(written, read, absent) if absent.line else absent.answer
                found += [(read, absent.question, SENTENCE, seeming)] if seeming else []
            found.append((read, asked.question, asked.answer, rng.choice([w for w in wrong if w] or [SENTENCE])))
        return found[: self.sizes.conversations]

    def _another(self, written: Sequence[Reference], read: Sequence[int], asked: Question, own: int = -1) -> str | None:
        """What another reference that is read says of the same field; of paragraphs, whatever was asked about one."""
        others = [ways[0] for n in read if n != own for ways in written[n].questions]
        alike = [q for q in others if q.field == asked.field] or others
        text = asked.answer + (f"\n{written[own].text}" if own >= 0 else "")
        wrong = [q.answer for q in alike if not refers_to(text, q) and asked.answer not in q.answer]
        return self.random.choice(wrong) if wrong else None
