"""Questions made by rule from prose: what they ask, and that their answers stand in the text."""

from __future__ import annotations

import random

from memory_model.data.questions import Question, prose_questions, refers_to


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
