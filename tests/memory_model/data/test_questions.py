"""Questions made by rule from prose: what they ask, and that their answers stand in the text."""

from __future__ import annotations

import random

import pytest

from memory_model.data.passages import Passage
from memory_model.data.questions import Pairs, Question, compared, prose_questions, refers_to, subject_of


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


def test_questions_about_prose_are_answered_by_a_span_of_it() -> None:
    text = (
        "Otto Lindqvist was a Swedish engineer. He was born in Uppsala on 4 March 1871 and worked for Bofors. "
        "The first of his 12 bridges was opened by King Oscar in 1899."
    )
    rng = random.Random(0)
    found = [q for _ in range(20) for (q,) in prose_questions("Otto Lindqvist", text, rng)]
    answers = {q.answer for q in found}
    assert {"Uppsala", "4 March 1871", "Bofors", "12", "1899", "a Swedish engineer"} <= answers
    for question in found:
        assert question.answer in text
        assert question.question.endswith(("?", ".", '"'))
        if question.answer != "a Swedish engineer":
            assert question.answer not in question.question


def test_prose_is_asked_for_by_description_and_for_whole_sentences() -> None:
    text = "Otto Lindqvist was a Swedish engineer. He was born in Uppsala and worked for Bofors until 1899."
    rng = random.Random(0)
    found = [q for _ in range(40) for (q,) in prose_questions("Otto Lindqvist", text, rng)]
    asked = [q.question for q in found if q.answer == "Otto Lindqvist"]
    assert any("Swedish engineer was born in Uppsala" in q for q in asked)
    whole = [q for q in found if q.answer == "He was born in Uppsala and worked for Bofors until 1899."]
    assert any("1899" in q.question or "Bofors" in q.question or "Uppsala" in q.question for q in whole)
    assert any("He was born" in q.question for q in whole)


def test_a_definition_is_asked_both_ways() -> None:
    rng = random.Random(0)
    found = [
        q
        for _ in range(10)
        for (q,) in prose_questions("zenith", "The point of the sky straight overhead.", rng)
    ]
    assert {"zenith", "The point of the sky straight overhead"} == {q.answer for q in found}


def test_a_text_refers_to_a_question_by_its_line_or_its_answer() -> None:
    question = Question("How large?", "12 km", "Area: 12 km")
    assert refers_to("L\nArea: 12 km", question)
    assert refers_to("it is 12 KM wide", question)
    assert not refers_to("it is 13 km wide", question)
