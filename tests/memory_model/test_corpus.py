"""The corpus: its passages, their split, what is dropped, and the manifest that says what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_model.data.corpus import fetching, preparing
from memory_model.data.corpus.fetching import Package, fetch
from memory_model.data.corpus.overlap import Exclusion, Seen
from memory_model.data.corpus.passages import (
    LONGEST,
    SHORTEST,
    Passage,
    document_passages,
    held_out,
    is_prose,
    pack,
    read_passages,
    sentences,
    write_passages,
)
from memory_model.data.corpus.sources import SOURCES, Source, chosen
from memory_model.errors import CorruptFile, InvalidInput, MissingFile

GARBO = "Greta Garbo was a Swedish and American film actress, who was born in Stockholm in 1905."
NOBEL = "The prize was given in 1903 to Marie Curie, Pierre Curie and Henri Becquerel for their work on radiation."


def test_about_three_percent_of_the_documents_are_held_out() -> None:
    share = sum(held_out("gcide", f"word {n}") for n in range(10_000)) / 10_000
    assert 0.025 < share < 0.035


def test_the_passages_of_a_document_fall_on_one_side() -> None:
    keys = [f"document {n}" for n in range(200)]
    assert any(held_out("foldoc", key) for key in keys)
    for key in keys:
        assert held_out("foldoc", f"{key}#0") == held_out("foldoc", f"{key}#17") == held_out("foldoc", key)


def test_an_article_is_held_out_in_both_sources_that_may_have_it() -> None:
    keys = [f"Article {n}" for n in range(200)]
    assert [held_out("wikipedia", k) for k in keys] == [
        held_out("wikipedia-articles", f"{k}#3") for k in keys
    ]


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


def test_passages_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = list(document_passages("gcide", "Œuvre/1", "Œuvre", [NOBEL, GARBO]))
    assert write_passages(tmp_path / "gcide.jsonl", made) == 1
    assert list(read_passages(tmp_path / "gcide.jsonl")) == made


def test_a_broken_line_is_told_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "a", "key": "b", "title": "c", "text": "d"}\n{"key": 1}\n')
    with pytest.raises(CorruptFile, match="line 2"):
        list(read_passages(tmp_path / "a.jsonl"))


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


def _source(name: str, texts: list[str], package: Package | None = None) -> Source:
    def read(files: Mapping[str, Path], work: Path) -> Iterator[Passage]:
        for number, text in enumerate(texts):
            yield Passage(name, f"{name} {number}", name.title(), text)

    return Source(name, "made by hand", "CC0", (package,) if package else (), read)


def test_a_corpus_is_written_with_a_manifest_that_checks(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(json.dumps({"knowledge": GARBO}))
    sources = [
        _source("first", [NOBEL, GARBO]),
        _source("second", [NOBEL, "Nothing of this was ever said before."]),
    ]
    prepared = preparing.prepare(tmp_path / "out", sources, [tmp_path / "test.json"])
    assert {name: part.passages for name, part in prepared.parts.items()} == {"first": 1, "second": 1}
    assert prepared.parts["first"].dropped_as_excluded == 1
    assert prepared.parts["second"].dropped_as_repeated == 1
    assert [p.text for p in read_passages(tmp_path / "out" / "first.jsonl")] == [NOBEL]
    assert preparing.check(tmp_path / "out") == {"first": 1, "second": 1}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["sources"]["first"]["licence"] == "CC0"
    assert manifest["excluded"][0]["file"] == "test.json"


def test_preparing_twice_writes_the_same_bytes_and_reads_once(tmp_path: Path) -> None:
    source = _source("first", [NOBEL, GARBO])
    preparing.prepare(tmp_path, [source], [])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}

    def read_again(files: Mapping[str, Path], work: Path) -> Iterator[Passage]:
        raise AssertionError("a source that is prepared was read again")

    preparing.prepare(tmp_path, [Source("first", source.what, source.licence, (), read_again)], [])
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_a_source_that_cannot_be_had_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching.shutil, "which", lambda name: None)
    package = Package("npm", "none", "1", "none-1.tgz", "")
    prepared = preparing.prepare(tmp_path, [_source("far", [GARBO], package), _source("near", [NOBEL])], [])
    assert list(prepared.parts) == ["near"]
    assert "install" in str(prepared.failed["far"])
    assert preparing.check(tmp_path) == {"near": 1}


def test_a_changed_or_missing_file_fails_the_check(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="prepare-data"):
        preparing.check(tmp_path)
    preparing.prepare(tmp_path, [_source("first", [NOBEL])], [])
    file = tmp_path / "first.jsonl"
    file.write_bytes(file.read_bytes().replace(b"1903", b"1904"))
    with pytest.raises(CorruptFile, match="first"):
        preparing.check(tmp_path)
    file.unlink()
    with pytest.raises(MissingFile, match="first"):
        preparing.check(tmp_path)


def test_a_file_of_an_earlier_choice_of_sources_does_not_stay(tmp_path: Path) -> None:
    preparing.prepare(tmp_path, [_source("first", [NOBEL]), _source("second", [GARBO])], [])
    preparing.prepare(tmp_path, [_source("second", [GARBO])], [])
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["second.jsonl"]


def test_a_cached_package_with_another_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pypi").mkdir()
    (tmp_path / "pypi" / "a-1-py3-none-any.whl").write_bytes(b"changed")
    with pytest.raises(CorruptFile, match="expected"):
        fetch(Package("pypi", "a", "1", "a-1-py3-none-any.whl", "0" * 64), tmp_path)


def test_another_release_of_a_debian_package_is_taken_and_said_to_be_unknown(tmp_path: Path) -> None:
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian" / "a_2_all.deb").write_bytes(b"newer")
    got = fetch(Package("debian", "a", "1", "a_1_all.deb", "0" * 64), tmp_path)
    assert got.path.name == "a_2_all.deb"
    assert not got.known


def test_a_missing_client_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching.shutil, "which", lambda name: None)
    with pytest.raises(MissingFile, match="Debian"):
        fetch(Package("debian", "a", "1", "a_1_all.deb", ""), tmp_path)


def test_apt_without_lists_is_asked_again_with_lists_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], failure: str, cwd: Path | None = None) -> str:
        asked.append(command)
        if command[1] == "download":
            if len(asked) == 1:
                raise MissingFile(f"{failure}: E: Unable to locate package a")
            assert cwd is not None
            (cwd / "a_1_all.deb").write_bytes(b"content")
        return ""

    monkeypatch.setattr(fetching, "run", run)
    got = fetch(Package("debian", "a", "0", "a_0_all.deb", ""), tmp_path)
    assert got.path.read_bytes() == b"content"
    assert [command[1] for command in asked] == ["download", "update", "download"]


def test_sources_are_chosen_by_name_in_their_own_order() -> None:
    assert [source.name for source in chosen(["gcide", "wikipedia"])] == ["wikipedia", "gcide"]
    assert chosen([]) == list(SOURCES)
    with pytest.raises(InvalidInput, match="wikipedia"):
        chosen(["nowhere"])


def test_the_documentation_names_every_source_and_its_licence() -> None:
    table = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    for source in SOURCES:
        assert f"| `{source.name}` |" in table
        assert source.licence in table
        for package in source.packages:
            assert package.name in table
