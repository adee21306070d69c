"""Words beside vectors: rare shared words decide between near candidates, and nothing else does."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_model.words import lexical_scores, named, order, query_words, word_counts


def test_a_word_is_its_lower_case_stem() -> None:
    assert word_counts("Populations, POPULATION and population-wide") == Counter(
        {zlib.crc32(b"popula"): 3, zlib.crc32(b"and"): 1, zlib.crc32(b"wide"): 1}
    )
    assert query_words("b a b") == sorted({zlib.crc32(b"a"), zlib.crc32(b"b")})


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert set(query_words("東京の人口")) & set(query_words("人口は東京"))


def test_the_fact_that_is_asked_for_comes_before_a_nearer_vector() -> None:
    texts = ["Benin\nPopulation: 10 million", "Benin\nAirports: 6", "Benin\nRailways: 438 km"]
    cosines = [0.62, 0.61, 0.6]
    counts = [word_counts(t) for t in texts]
    assert order(query_words("How many airports does Benin have?"), cosines, counts) == [1, 0, 2]
    assert order([], cosines, counts) == [0, 1, 2]


def test_a_document_that_the_query_names_comes_first_and_what_lies_far_below_is_left_out() -> None:
    texts = ["Togo\nAirports: 8", "Benin\nAirports: 6", "Benin\nRailways: 438 km"]
    counts, titles = [word_counts(t) for t in texts], [query_words(t.split("\n")[0]) for t in texts]
    asked = query_words("How many airports does Benin have?")
    cosines = [0.7, 0.65, 0.6]
    assert order(asked, cosines, counts, titles) == [1, 2, 0]
    assert order(asked, cosines, counts, titles, drop=0.1) == [1, 2]
    assert order(asked, cosines, counts, titles, drop=0.0) == [1]
    assert order([], [], [], [], drop=0.1) == []


def test_an_empty_title_is_not_named() -> None:
    assert named([1, 2], [[], [1], [1, 3], [2, 1]]).tolist() == [0.0, 1.0, 0.0, 1.0]


def test_a_word_that_all_candidates_share_decides_nothing() -> None:
    scores = lexical_scores(query_words("Benin"), [word_counts("Benin a"), word_counts("Benin b")])
    assert scores[0] == pytest.approx(scores[1])


@given(st.lists(st.text(max_size=30), max_size=8), st.text(max_size=30))
def test_every_candidate_is_placed_once(texts: list[str], query: str) -> None:
    counts = [word_counts(t) for t in texts]
    placed = order(query_words(query), [0.5] * len(texts), counts)
    assert sorted(placed) == list(range(len(texts)))
    assert np.isfinite(lexical_scores(query_words(query), counts)).all()
