"""Rows of two hops: both paragraphs are read, with the sentences that are needed, and fit a reference."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.questions.two_hops import Paragraph, two_hop_questions, two_hop_rows
from memory3.errors import CorruptFile
from memory_model.data.rows import read_rows

OTHERS = [[f"Hill {n}", [f"Hill {n} is high.", " It is green."]] for n in range(4)]
HOTPOT: dict[str, Any] = {
    "question": "In which country is the home of Ragna?",
    "answer": "Norway",
    "supporting_facts": [["Ragna", 1], ["Bergen", 0]],
    "context": [*OTHERS[:2], ["Ragna", ["She rows.", " Her home is Bergen."]], *OTHERS[2:], ["Bergen", ["In Norway."]]],
}
MUSIQUE: dict[str, Any] = {
    "question": "In which country is the home of Ragna?",
    "answer": "Norway",
    "answer_aliases": ["Kingdom of Norway"],
    "question_decomposition": [
        {"answer": "Bergen", "paragraph_support_idx": 1},
        {"answer": "Norway", "paragraph_support_idx": 3},
    ],
    "paragraphs": [
        {"idx": n, "title": title, "paragraph_text": text}
        for n, (title, text) in enumerate(
            [
                ("Hill", "High. Green."),
                ("Ragna", "She rows. Her home is Bergen."),
                ("Lake", "Deep."),
                ("Bergen", "A town in Norway. Rain falls."),
                ("Sea", "Wide."),
            ]
        )
    ],
}


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("row", [HOTPOT, MUSIQUE], ids=["hotpot", "musique"])
def test_a_row_reads_both_paragraphs_and_three_others(row: dict[str, Any]) -> None:
    (found,) = read_rows(list(two_hop_rows([row], words)))
    assert found.knowledge == "Ragna\nShe rows. Her home is Bergen."
    assert found.distractors is not None
    assert len(found.distractors) == 4
    assert found.distractors[1].startswith("Bergen\n")
    assert found.right_answers == ("Norway", *row.get("answer_aliases", []))


def test_a_long_paragraph_is_cut_to_the_sentences_around_the_needed_one() -> None:
    sentences = [" ".join([str(n)] * 40) for n in range(6)]
    text = Paragraph("Title", sentences, {4}).cut(words)
    assert text == f"Title\n{sentences[4]} {sentences[5]}", "the sentence after it, and no third"
    assert Paragraph("Title", sentences, {1, 4}).cut(words) is None


def test_questions_of_more_steps_and_of_sentences_that_do_not_fit_are_left_out() -> None:
    three = MUSIQUE | {
        "question_decomposition": [*MUSIQUE["question_decomposition"], {"answer": "", "paragraph_support_idx": 4}]
    }
    long = HOTPOT | {"context": [*OTHERS, ["Ragna", ["", "word " * 200]], ["Bergen", ["In Norway."]]]}
    alone = HOTPOT | {"context": HOTPOT["context"][2:]}
    assert not list(two_hop_rows([three, long, alone], words))


def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps([{"question": "Which?"}]))
    with pytest.raises(CorruptFile, match=r"other\.json has no rows of HotpotQA or MuSiQue"):
        two_hop_questions([file], out=tmp_path)
