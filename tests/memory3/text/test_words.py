"""Words beside vectors: rare shared words decide between near candidates, and nothing else does."""

import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory3.text.words import QueryWords, lexical_scores, query_words, ranked, text_words


def test_a_word_is_its_lower_case_stem() -> None:
    words = [b"popula", b"popula", b"and", b"popula", b"wide"]
    assert text_words("Populations, POPULATION and population-wide").tolist() == [*map(zlib.crc32, words)]
    assert query_words("b a b") == sorted({zlib.crc32(b"a"), zlib.crc32(b"b")})


@given(st.text(st.characters(max_codepoint=127)))
def test_a_text_of_ascii_has_the_words_that_it_has_before_another_letter(text: str) -> None:
    assert [*text_words(text), zlib.crc32("é".encode())] == text_words(f"{text} É").tolist()


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert set(query_words("東京の人口")) & set(query_words("人口は東京"))
    question, note = query_words("รหัสผ่านอินเทอร์เน็ต"), query_words("ชื่อเครือข่าย รหัสผ่านคือmango2876")
    assert len(set(question) & set(note)) == len("รหัสผ่าน") - 2
    assert {zlib.crc32(b"mango2"), zlib.crc32("คือ".encode())} <= set(note)
    assert query_words("น้") == [zlib.crc32("น้".encode())]


@pytest.mark.parametrize(("written", "other"), [("किताब", "कोताबी"), ("மணி", "மணல்"), ("নীল", "নল")])
def test_a_words_vowels_that_are_marks_are_part_of_it(written: str, other: str) -> None:
    assert query_words(f"{written}।") == [zlib.crc32(written.encode())]
    assert not {*query_words(written)} & {*query_words(other)}


@pytest.mark.parametrize(
    ("written", "elsewhere"),
    [("المخبز", "مخبز"), ("للشبكة", "الشبكه"), ("وَالكِتَابُ", "كتاب"), ("إياد", "اياد"), ("جـــديد", "جديد")],
)
def test_an_arabic_word_is_itself_with_article_vowels_and_other_forms_of_its_letters(
    written: str, elsewhere: str
) -> None:
    assert query_words(written) == query_words(elsewhere)
    assert len(query_words("والد لدى")) == 2


def test_a_document_that_the_query_names_comes_first_and_what_lies_far_below_is_left_out() -> None:
    texts = ["Togo\nAirports: 8", "Benin\nAirports: 6", "Benin\nRailways: 438 km"]
    counts, titles = [text_words(t) for t in texts], [query_words(t.split("\n")[0]) for t in texts]
    asked = query_words("How many airports does Benin have?")
    cosines = [0.7, 0.65, 0.6]
    for drop, order in ((None, [1, 2, 0]), (0.1, [1, 2]), (0.0, [1])):
        assert [index for index, _ in ranked(asked, cosines, counts, titles, drop)] == order
    assert ranked([], [], [], [], drop=0.1) == []


def test_a_text_that_speaks_of_the_named_title_is_read_beside_the_document_of_that_title() -> None:
    texts = [
        "Bero\nname: Bero; room: 12; phone: 5513",
        "Printers\nBERO has the address 10.0.0.7 and prints in colour",
        "Printers\nVolta has the address 10.0.0.9 and prints in black",
    ]
    counts, titles = [text_words(t) for t in texts], [query_words(t.split("\n")[0]) for t in texts]

    def found(question: str, earlier: tuple[str, ...] = (), best: float = 0.6) -> list[int]:
        words = QueryWords(query_words(question), map(query_words, earlier))
        return [n for n, _ in ranked(words, [best, 0.58, 0.58], counts, titles, 0.12)]

    assert found("What is the address of Bero?") == [0, 1], "the other printer is left out"
    assert found("What is the address of Bero?", best=0.9) == [0, 1], "the titled row has no address"
    assert found("What is the phone of Bero?", best=0.9) == [0], "the titled row has the words"
    assert found("And its address?", ("Which room has Bero?",)) == [0, 1]
    assert found("What is the address of Volta?")[0] == 2, "a name that is no title counts as a word"


def test_the_newest_turn_that_names_a_document_tells_which_one_a_follow_up_is_about() -> None:
    titles = ["Volta 3", "Renko Zed", "Opal City"]
    texts = [f"{title}\nOil change: 60\nWindscreen replacement: 410" for title in titles]
    turns = ["And a tyre change?", "How much is an oil change for the Volta 3?", "What does the Renko Zed cost?"]

    def found(question: str, earlier: list[str], drop: float | None = 0.12) -> list[int]:
        words = QueryWords(query_words(question), map(query_words, earlier))
        counts = [text_words(text) for text in texts]
        return [n for n, _ in ranked(words, [0.65, 0.66, 0.66], counts, [query_words(t) for t in titles], drop)]

    assert found("What about a windscreen replacement?", []) == [1, 2, 0]
    assert found("What about a windscreen replacement?", turns, None) == [0, 1, 2]
    assert found("What about a windscreen replacement?", turns) == [0], "the others are left out"
    assert found("And a windscreen for the Opal City?", turns) == [2], "what is named now counts alone"
    assert found("And the 3?", ["How is the Volta?"])[0] == 0, "a name may be in two turns"


def test_beside_the_document_of_an_earlier_turn_another_one_is_read_for_what_that_lacks() -> None:
    texts = ["Volta 3\nservice: 60\ntyre: 410", "Renko Zed\nservice: 90\ntyre: 310", "Insurance\nclass: 7, of any car"]
    counts, titles = [text_words(t) for t in texts], [query_words(t.split("\n")[0]) for t in texts]

    def found(question: str, of_named: float = 0.55) -> list[int]:
        words = QueryWords(query_words(question), [query_words("How much is a tyre for the Volta 3?")])
        return sorted(n for n, _ in ranked(words, [of_named, 0.64, 0.6], counts, titles, 0.12))

    assert found("What about a service?") == [0, 2], "the other list is nearer, and has only the service, too"
    assert found("Which class is it?") == [0, 1, 2], "words that no list has"
    assert found("And the Renko's service?") == [0, 1, 2], "a name in part"
    assert found("What about a service?", of_named=0.2) == [1, 2], "the subject has changed"


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
