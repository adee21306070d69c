"""Words beside vectors: rare shared words decide between near candidates, and nothing else does."""

import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_model.words import lexical_scores, order, query_words, text_words


def test_a_word_is_its_lower_case_stem() -> None:
    words = [b"popula", b"popula", b"and", b"popula", b"wide"]
    assert text_words("Populations, POPULATION and population-wide").tolist() == [*map(zlib.crc32, words)]
    assert query_words("b a b") == sorted({zlib.crc32(b"a"), zlib.crc32(b"b")})


@given(st.text(st.characters(max_codepoint=127)))
def test_a_text_of_ascii_has_the_words_that_it_has_before_another_letter(text: str) -> None:
    assert [*text_words(text), zlib.crc32("é".encode())] == text_words(f"{text} É").tolist()


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert set(query_words("東京の人口")) & set(query_words("人口は東京"))


def test_a_document_that_the_query_names_comes_first_and_what_lies_far_below_is_left_out() -> None:
    texts = ["Togo\nAirports: 8", "Benin\nAirports: 6", "Benin\nRailways: 438 km"]
    counts, titles = [text_words(t) for t in texts], [query_words(t.split("\n")[0]) for t in texts]
    asked = query_words("How many airports does Benin have?")
    cosines = [0.7, 0.65, 0.6]
    assert order(asked, cosines, counts, titles) == [1, 2, 0]
    assert order(asked, cosines, counts, titles, drop=0.1) == [1, 2]
    assert order(asked, cosines, counts, titles, drop=0.0) == [1]
    assert order([], [], [], [], drop=0.1) == []


def _by_definition(words: list[int], candidates: list[list[int]]) -> list[float]:
    """BM25 as the textbook has it, a candidate and a word at a time."""
    mean = max(1.0, sum(map(len, candidates)) / len(candidates))
    scores = []
    for candidate in candidates:
        score = 0.0
        for word in set(words):
            holding = sum(word in other for other in candidates)
            rarity = math.log1p((len(candidates) - holding + 0.5) / (holding + 0.5))
            count = candidate.count(word)
            score += rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(candidate) / mean))
        scores.append(score)
    return scores


_WORDS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)), max_size=12)


@given(_WORDS, st.lists(_WORDS, min_size=1, max_size=6))
def test_all_candidates_at_once_score_as_one_at_a_time(words: list[int], candidates: list[list[int]]) -> None:
    together = lexical_scores(words, [np.array(c, np.uint32) for c in candidates])
    assert together == pytest.approx(_by_definition(words, candidates))
