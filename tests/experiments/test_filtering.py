"""The paper's data pipeline: what each step refuses, what the command writes, and how vocabularies are merged."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.corpus.filtering import quality_scorer, refused_by_rule, with_test_questions, without_duplicates
from experiments.corpus.preparing import question_sets, write_rows
from experiments.corpus.vocabulary import merged, train_bpe
from memory3.errors import InvalidInput, MissingFile
from memory_model.data.passages import Passage, corpus_files, read_rows
from memory_model.data.rows import open_rows
from testing.programs import ROOT

WORDS = ("stone", "river", "light", "garden", "winter", "copper", "letter", "island", "morning", "engine", "music")


def prose(seed: int, words: int = 80) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) + rng.choice(["", "", "s", "ed"]) for _ in range(words))


def passage(key: str, text: str) -> Passage:
    return Passage("made", key, key, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (prose(0), ""),
        (prose(0, 49), "fewer than 50 words"),
        (" ".join(["internationalisation"] * 30 + ["of", "characters"] * 15), "longer than 10"),
        (" ".join(f"{n} 2024-{n:02}" for n in range(60)), "not alphabetic"),
        (" ".join(f"{a}{b}ly" for a in WORDS for b in WORDS), "longer than 10|unique"),
        (" ".join(["one two three four"] * 40), "entropy"),
    ],
)
def test_a_text_is_refused_by_the_papers_rules_with_the_reason(text: str, reason: str) -> None:
    found = refused_by_rule(text)
    assert bool(found) == bool(reason)
    assert not reason or any(part in found for part in reason.split("|"))


def test_of_near_duplicates_the_first_stays() -> None:
    text = prose(1, 400)
    alike = text.replace("stone river", "stone brook", 1)
    kept = without_duplicates([passage("a", text), passage("b", alike), passage("c", prose(2, 400))])
    assert [p.key for p in kept] == ["a", "c"]


def test_a_question_is_found_where_two_thirds_of_its_words_stand_in_order() -> None:
    question = "Which river of the northern island carries copper to the old harbour in winter?"
    inside = "It is said that the river of the northern island carries copper to the old harbour each winter."
    backwards = " ".join(reversed(inside.split()))
    passages = [passage("held", inside), passage("order", backwards), passage("other", prose(3))]
    assert with_test_questions(passages, ["What is music?", question]) == {0}


def test_quality_is_learned_from_grades() -> None:
    def embed(texts: object) -> np.ndarray:
        return np.array([[len(t), t.count("river"), 1.0] for t in texts])  # type: ignore[attr-defined]

    texts = [prose(n, 60) for n in range(60)]
    score, ordered = quality_scorer(texts, [t.count("river") for t in texts], embed)
    assert ordered["spearman"] > 0.9
    assert 0 < ordered["error"] < 0.1
    shuffled = random.Random(0).sample(range(60), 60)
    assert abs(quality_scorer(texts, shuffled, embed)[1]["spearman"]) < 0.4, "nothing is learned of what says nothing"
    low, high = score(["stone " * 40, "river " * 40])
    assert high > low
    with pytest.raises(InvalidInput, match="at least 20"):
        quality_scorer(texts[:3], [1, 2, 3], embed)


def test_every_committed_question_set_is_left_out_and_a_missing_one_is_named() -> None:
    committed = ROOT / "data"
    found = {path.stem: open_rows(path) for path in question_sets([committed])}
    assert {path.stem for path in committed.glob("*.json")} - set(found) == {"heldout"}
    with pytest.raises(MissingFile, match="nowhere"):
        question_sets([Path("nowhere")])


def test_the_command_leaves_out_a_new_set_of_data_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "Which copper letter of the island came with the morning music of winter?"
    held = f"{prose(9)}. {question} {prose(10)}"
    rows = [
        passage("a", prose(4, 300)),
        passage("b", prose(4, 300)),
        passage("short", "Too short."),
        passage("t", held),
    ]
    write_rows(tmp_path / "corpus" / "made.jsonl", rows)
    asked = [{"question": question, "knowledge": "k", "right_answer": "r"}]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "new_set.json").write_text(json.dumps(asked))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["filter-corpus", "--corpus", "corpus", "--out", str(out)])
    assert result.exit_code == 0, result.output
    kept = [p.key for file in corpus_files(out) for p in read_rows(file, Passage)]
    assert kept == ["a"]
    report = json.loads((out / "report" / "report.json").read_text())
    assert {row["step"]: row["removed"] for row in report["steps"]} == {
        "corpus": 0,
        "rules": 1,
        "MinHash": 1,
        "test questions": 1,
    }
    references = [json.loads(line) for line in (out / "knowledge_base" / "references.jsonl").read_text().splitlines()]
    assert len(references) == report["references"] > 1


def test_vocabularies_are_merged_to_a_size_and_texts_survive() -> None:
    english, other = [prose(n) for n in range(40)], ["größe straße über zwölf " * 5 + str(n) for n in range(20)]
    first, second = train_bpe(english, 320), train_bpe(other, 320)
    both = merged(first, second, 340)
    assert both.get_vocab_size() == 340
    assert first.get_vocab().items() <= both.get_vocab().items()
    for text in (english[0], other[0], "日本語 123"):
        assert both.decode(both.encode(text).ids) == text
    assert len(both.encode(other[0]).ids) < len(first.encode(other[0]).ids)
    assert both.encode(english[0]).ids == first.encode(english[0]).ids
    with pytest.raises(InvalidInput, match="together"):
        merged(first, second, 10_000)
