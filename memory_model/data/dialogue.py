"""Conversations that ask about earlier ones: statements of users about themselves and others.

A reference is a run of remembered turns, formatted as on a device (`references.turn_references`). Values of
`data/factbook.jsonl` become statements: "User: My sister Anna lives in Lisbon." All references of a batch hold the
same field, most of them of different people; some questions ask for the assistant's own answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from memory3.errors import InvalidInput
from memory3.text.chat import ChatTemplate
from memory3.text.references import turn_references
from memory_model.data import factbook
from memory_model.data.conversations import Sizes, TrainingReference
from memory_model.data.factbook import Question
from memory_model.data.hard_negatives import HardNegativeConversations, Unanswered

_ME = "I"
_RELATIONS = (
    "sister",
    "brother",
    "mother",
    "father",
    "cousin",
    "neighbour",
    "boss",
    "colleague",
    "friend",
    "teacher",
    "daughter",
    "son",
    "aunt",
    "uncle",
    "flatmate",
    "doctor",
)
_NAMES = (
    "Anna",
    "Bruno",
    "Chen",
    "Dora",
    "Emre",
    "Fatima",
    "Goran",
    "Hana",
    "Ivan",
    "Julia",
    "Kofi",
    "Lena",
    "Marek",
    "Nadia",
    "Oskar",
    "Priya",
    "Quentin",
    "Rosa",
    "Sven",
    "Tariq",
    "Uma",
    "Viktor",
    "Wanda",
    "Yusuf",
    "Zoe",
)
_FIELDS = {  # field: verb in the first person, in the third, question; {do}, {be} and {w} agree with the person
    "Capital - name": ("live in", "lives in", "Where {do} {w} live?"),
    "Languages": ("am learning", "is learning", "Which language {be} {w} learning?"),
    "Agriculture - products": ("grow", "grows", "What {do} {w} grow?"),
    "Industries": ("work in", "works in", "Which industry {do} {w} work in?"),
    "Exports - commodities": ("sell", "sells", "What {do} {w} sell?"),
    "Natural resources": ("am writing about", "is writing about", "What {be} {w} writing about?"),
    "Elevation extremes - highest point": ("want to climb", "wants to climb", "Which mountain {do} {w} want to climb?"),
}
_OPENINGS = ("", "", "By the way: ", "You should know: ", "For later: ")
_REPLIES = ("Thanks, I will remember that.", "Good to know!", "I see.", "How nice.")
_ASKING = ("{q}", "{q}", "Do you remember? {q}", "I told you once. {q}")
_ASKING_BACK = ("{q}", "What did you tell me: {q}", "You told me before. {q}")
_OF_THE_ASSISTANT = 0.2  # share of the references that hold an answer of the assistant


class Dialogues(HardNegativeConversations):
    """Questions about earlier conversations; refused ones ask about a person who was never named."""

    task = "dialogue"

    def __init__(self, documents: Sequence[dict[str, Any]], chat: ChatTemplate, seed: int, sizes: Sizes) -> None:
        """sizes: references of at least some 40 tokens. Raises InvalidInput where no field has a dozen short values."""
        super().__init__(chat, seed, sizes)
        self.refused_share = sizes.refused
        self.documents = [d for d in documents if factbook.questions(d["title"], d["text"])]
        values: dict[str, dict[str, None]] = {field: {} for field in _FIELDS}
        for document in documents:
            for field, value, _ in factbook.facts(document["text"]):
                first = re.split(r"[,;:(%\d]", value, maxsplit=1)[0].strip()
                if field in values and 2 < len(first) < 30 and first not in ("none", "NEGL"):
                    values[field][first] = None
        self.values = {field: list(found) for field, found in values.items() if len(found) >= 12}
        if not self.values:
            raise InvalidInput("task dialogue needs a field with 12 short values: drop it from --mixture")

    def draw(self) -> list[TrainingReference]:
        """Runs of turns about one field of different people, and some in which the assistant answered."""
        rng, size = self.random, self.sizes.written
        self.topic = rng.choice(sorted(self.values))
        self.people = _people(size, rng)
        values = rng.sample(self.values[self.topic], min(size, len(self.values[self.topic])))
        drawn = [
            self._answered(n) if rng.random() < _OF_THE_ASSISTANT else self._stated(n, person, value)
            for n, (person, value) in enumerate(zip(self.people, values, strict=False))
        ]
        return [reference for reference in drawn if reference.questions]

    def unanswered(self, written: Sequence[TrainingReference]) -> Unanswered | None:
        """A question for the topic of a person whom no reference names."""
        rng = self.random
        person = next(p for p in _people(4 * len(self.people), rng) if p not in self.people)
        read = rng.sample(range(len(written)), min(self.sizes.memories, len(written)))
        return read, Question(rng.choice(_ASKING).format(q=_question(self.topic, person)), "", "")

    def _stated(self, number: int, person: str, value: str) -> TrainingReference:
        """Turns in which a user states a person's topic, and at times another field before or after it."""
        rng = self.random
        facts = [(self.topic, value)]
        others = sorted(set(self.values) - {self.topic})
        if others and rng.random() < 0.5:
            field = rng.choice(others)
            facts.insert(rng.randint(0, 1), (field, rng.choice(self.values[field])))
        turns: list[tuple[str, str]] = []
        questions = []
        for field, value in facts:
            does = _FIELDS[field][person != _ME]
            statement = f"{person[0].upper()}{person[1:]} {does} {value}."
            question = _question(field, person)
            turns += [("user", rng.choice(_OPENINGS) + statement), ("assistant", rng.choice(_REPLIES))]
            questions.append([Question(way.format(q=question), value, statement) for way in dict.fromkeys(_ASKING)])
        return self._reference(number, turns[: len(turns) - rng.randint(0, 1)], questions)

    def _answered(self, number: int) -> TrainingReference:
        """A user's question about a country, and the assistant's answer."""
        rng = self.random
        document = rng.choice(self.documents)
        question = rng.choice(rng.choice(factbook.questions(document["title"], document["text"])))
        answer = factbook.sentence(document["title"], question.line, rng)
        questions = [Question(way.format(q=question.question), question.answer, answer) for way in _ASKING_BACK]
        return self._reference(number, [("user", question.question), ("assistant", answer)], [questions])

    def _reference(
        self, number: int, turns: Sequence[tuple[str, str]], questions: list[list[Question]]
    ) -> TrainingReference:
        text = turn_references(turns, self.chat.tokenizer.count, self.sizes.longest)[0]
        held = [ways for ways in questions if ways[0].line in text]
        return TrainingReference(number, text, self.chat.tokenizer.encode(text), held)


def _people(count: int, rng: random.Random) -> list[str]:
    """Different people by how a user speaks of them, the user among them."""
    pairs = [f"my {relation} {name}" for relation in _RELATIONS for name in _NAMES]
    return rng.sample([_ME, *rng.sample(pairs, count - 1)], count)


def _question(field: str, person: str) -> str:
    do, be = ("do", "am") if person == _ME else ("does", "is")
    return _FIELDS[field][2].format(do=do, be=be, w=person)
