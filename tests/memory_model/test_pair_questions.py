"""Questions about two passages at once: what they ask, and that the answers are true of both."""

from __future__ import annotations

import random

import pytest

from memory_model.data.corpus.passages import Passage
from memory_model.data.pair_questions import Pairs, compared, subject_of


def passage(title: str, text: str) -> Passage:
    return Passage("wikipedia", title, title, text)


ADA = passage(
    "Ada Lund", "Ada Lund (1901–1983) was a Swedish engineer who built bridges over every river of the north."
)
KURT = passage(
    "Kurt Weiss",
    "Kurt Weiss (1896–1950) was an Austrian engineer and the owner of a factory of small clocks.",
)
SAVA = passage(
    "Sava", "Sava is a river in Southeast Europe, a right tributary of the Danube, named in 1204 in a letter."
)


def asked(one: Passage, two: Passage) -> dict[str, str]:
    first, second = subject_of(one), subject_of(two)
    assert first is not None
    assert second is not None
    found: dict[str, str] = {}
    for seed in range(40):
        found |= {q.question: q.answer for q in compared(first, second, random.Random(seed))}
    return found


def test_an_opening_says_what_its_subject_is() -> None:
    subject = subject_of(ADA)
    assert subject is not None
    assert (subject.kind, subject.called, subject.adjective) == ("engineer", "Swedish engineer", "Swedish")
    assert (subject.year, subject.person) == (1901, True)


@pytest.mark.parametrize(
    "text",
    [
        "Rust never sleeps, as people in the harbour of the old town like to say.",
        "Rust is a type of thing that many people in harbours dislike.",
    ],
)
def test_an_opening_that_says_nothing_definite_is_left_out(text: str) -> None:
    assert subject_of(passage("Rust", text)) is None


def test_two_of_a_kind_are_compared_truly() -> None:
    questions = asked(ADA, KURT)
    assert questions["Are Ada Lund and Kurt Weiss both engineers?"] == "yes"
    assert questions["Are Ada Lund and Kurt Weiss both Swedish?"] == "no"
    assert questions["Who was born first, Ada Lund or Kurt Weiss?"] == "Kurt Weiss"
    assert questions["Who is younger, Ada Lund or Kurt Weiss?"] == "Ada Lund"
    assert set(questions.values()) == {"yes", "no", "engineer", "Ada Lund", "Kurt Weiss"}


def test_two_of_different_kinds_are_told_apart() -> None:
    questions = asked(ADA, SAVA)
    assert questions["Are Sava and Ada Lund both rivers?"] == "no"
    assert questions["Which is a river, Ada Lund or Sava?"] == "Sava"
    assert not any("born" in q for q in questions)  # a river's year is no birth


def test_pairs_are_drawn_alike_for_a_seed() -> None:
    pairs = Pairs([ADA, KURT, SAVA])
    assert list(pairs.kinds) == ["engineer"]
    assert pairs.draw(random.Random(3)) == pairs.draw(random.Random(3))
    text, asks = pairs.draw(random.Random(3))
    assert asks
    assert all(q.line.split(". ")[0] in text for ways in asks for q in ways)
