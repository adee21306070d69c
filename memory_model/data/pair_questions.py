"""Questions that two passages answer together: what they share, which of them it is, which came first.

People compare things ("Are A and B both rivers?", "Which was born first, A or B?") and ask by way of one thing
for another. A pair is the opening sentences of two passages behind one another, as a reference about two subjects
would be; neither sentence alone answers. Made by rule: what the first sentence calls its subject, its leading adjective
and its first year.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memory_model.data.corpus.passages import Passage
from memory_model.data.questions import Question
from memory_model.references import sentences

_CALLED = re.compile(r" (?:is|was|are|were) (?:an?|the|one of the) (?P<what>[^;:(),.]{4,90})")
_BREAK = re.compile(
    r" (?:which|who|that|in|of|from|for|by|on|at|with|and|or|to|as|near|around|\w+ing|\w+ed|\w+ly) "
)
_VAGUE = frozenset(
    {
        "one",
        "ones",
        "type",
        "form",
        "name",
        "body",
        "part",
        "kind",
        "set",
        "term",
        "series",
        "collection",
        "group",
        "member",
    }
)
_NO_NOUN = re.compile(r"(?:ed|ly|ing|en|wn)$")
_YEAR = re.compile(r"(?<![\d,.$£-])(?:1[0-9]{3}|20[0-2][0-9])(?![,.]?\d)")
_BORN = re.compile(r"\((?:[^()]*\b)?(?:born )?(?:\d{1,2} )?(?:[A-Z][a-z]+ )?(?:\d{1,2}, )?1\d{3}\b")


@dataclass(frozen=True)
class Subject:
    """What a passage's opening says of its subject.

    kind: the noun it is called by ("engineer"); called: the phrase around it ("Swedish engineer"); adjective: its
    leading capitalised word, if any ("Swedish"); year: the first year named, 0 for none; person: the year is a birth.
    """

    name: str
    opening: str
    kind: str
    called: str
    adjective: str
    year: int
    person: bool


def subject_of(passage: Passage) -> Subject | None:
    """The subject of a passage, or none if its opening does not say what it is."""
    bodies = [body for body, _ in sentences(passage.text)]
    if not bodies or not 40 <= len(bodies[0]) <= 400 or len(passage.title.split()) > 6:
        return None
    called = _CALLED.search(bodies[0])
    if called is None or passage.title.split()[-1] not in bodies[0][: called.start()]:
        return None
    phrase = _BREAK.split(called["what"], maxsplit=1)[0].strip()
    words = phrase.split()
    if (
        not 1 <= len(words) <= 5
        or _NO_NOUN.search(words[-1])
        or not words[-1].isalpha()
        or not words[-1].islower()
        or words[-1] in _VAGUE
    ):
        return None
    year = _YEAR.search(bodies[0])
    return Subject(
        passage.title, bodies[0], words[-1], phrase, words[0] if words[0][0].isupper() and len(words) > 1 else "",
        int(year.group()) if year else 0, bool(_BORN.search(bodies[0])),
    )  # fmt: skip


class Pairs:
    """Subjects by what they are called, so that two of a kind are found; draws pairs at random."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        found = (subject_of(p) for p in passages)
        self.subjects = [s for s in found if s is not None]
        kinds: dict[str, list[Subject]] = {}
        for subject in self.subjects:
            kinds.setdefault(subject.kind, []).append(subject)
        self.kinds = {kind: alike for kind, alike in sorted(kinds.items()) if len(alike) > 1}

    def draw(self, rng: random.Random) -> tuple[str, list[list[Question]]]:
        """(text, questions about it) of two subjects, mostly of one kind; raises IndexError where there are none."""
        first = rng.choice(self.subjects)
        alike = self.kinds.get(first.kind, []) if rng.random() < 0.7 else self.subjects
        second = rng.choice([s for s in alike if s.name != first.name] or self.subjects)
        text = rng.choice((" ", "", " ")).join((first.opening, second.opening))
        asks = [q for q in compared(first, second, rng) if q.answer]
        rng.shuffle(asks)
        return text, [[q] for q in asks[:5]]


def compared(one: Subject, two: Subject, rng: random.Random) -> Iterator[Question]:
    """Questions about two subjects whose answers need both of their openings."""
    if one.name == two.name:
        return
    a, b = (one, two) if rng.random() < 0.5 else (two, one)
    both = f"{a.name} and {b.name}"
    line = f"{one.opening} {two.opening}"
    if a.kind == b.kind:
        people = a.person and b.person
        common = (
            f"{both} {'have' if rng.random() < 0.5 else 'share'} what {'occupation' if people else 'in common'}?",
            f"{both} are both what?", f"What are both {both}?",
            f"Which {'profession' if people else 'kind of thing'} is common to {both}?",
        )  # fmt: skip
        yield Question(rng.choice(common), a.kind, line)
        yield Question(f"{rng.choice(('Are', 'Were'))} {both} both {_plural(a.kind)}?", "yes", line)
        if a.adjective and b.adjective:
            same = a.adjective == b.adjective
            yield Question(f"Are {both} both {a.adjective}?", "yes" if same else "no", line)
            if not same:
                asked = rng.choice(("Which {k} is {d}, {a} or {b}?", "Which is the {d} {k}, {a} or {b}?"))
                yield Question(asked.format(k=a.kind, d=a.adjective, a=one.name, b=two.name), a.name, line)
    else:
        yield Question(f"Are {both} both {_plural(a.kind)}?", "no", line)
        asked = rng.choice(
            ("Which is {d}, {a} or {b}?", "Is {a} or {b} {d}?", "Which of the two is {d}: {a} or {b}?")
        )
        yield Question(asked.format(d=_article(a.called), a=one.name, b=two.name), a.name, line)
    if one.year and two.year and one.year != two.year:
        early = min(one, two, key=lambda s: s.year)
        late = two if early is one else one
        if one.person and two.person:
            first = (
                "Who was born first, {a} or {b}?",
                "Who is older, {a} or {b}?",
                "Who was born earlier, {b} or {a}?",
            )
            last = ("Who was born later, {a} or {b}?", "Who is younger, {a} or {b}?")
            yield Question(rng.choice(first).format(a=one.name, b=two.name), early.name, line)
            yield Question(rng.choice(last).format(a=one.name, b=two.name), late.name, line)


def _plural(noun: str) -> str:
    if noun.endswith("s"):
        return noun
    if noun.endswith(("ch", "sh", "x")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeou" else f"{noun}s"


def _article(phrase: str) -> str:
    return f"{'an' if phrase[0].lower() in 'aeiou' else 'a'} {phrase}"
