"""Passages of a corpus: which are held out, and how their files are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.corpus.preparing import write_rows
from memory_model.data.passages import Asked, Passage, held_out, read_rows
from memory_model.errors import CorruptFile, MissingFile


def test_passages_of_a_document_and_of_an_article_in_two_sources_fall_on_one_side() -> None:
    keys = [f"Article {n}" for n in range(200)]
    out = [held_out("wikipedia", key) for key in keys]
    assert any(out)
    for part in (0, 17):
        assert [held_out("wikipedia-articles", f"{key}#{part}") for key in keys] == out


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    passages = [Passage("s", "Œuvre#0", "Œuvre", "ä"), Passage("s", "b#0", "b", "c")]
    write_rows(tmp_path / "s.jsonl", passages)
    assert list(read_rows(tmp_path / "s.jsonl", Passage)) == passages
    asked = [Asked("q?", "ä", "T\nä", "s", "k#0")]
    write_rows(tmp_path / "asked" / "q.jsonl", asked)
    assert list(read_rows(tmp_path / "asked" / "q.jsonl", Asked)) == asked
    with pytest.raises(MissingFile, match="prepare-data"):
        list(read_rows(tmp_path / "none.jsonl", Passage))


def test_a_broken_line_is_told_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "a", "key": "b", "title": "c", "text": "d"}\n{"key": 1}\n')
    with pytest.raises(CorruptFile, match="line 2"):
        list(read_rows(tmp_path / "a.jsonl", Passage))
