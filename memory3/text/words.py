"""Words in addition to vectors: which candidates share the query's rare words (BM25 over the candidates alone).

A reference of eight facts has one vector, which is near every question about its subject; the words of the
question tell which fact is meant. The nearest references by vector are therefore ordered anew by

    cosine + 0.02 * BM25 + 0.2 if the query has all words of the document's title

where a word is rare or common among the candidates themselves, and the numbers are the embedder's (`Ranking`). Where
the query names no title, three quarters of the last number are added for those that it names together with an earlier
turn ("What about a service?"): the newest turn that names one counts.

What scores far below the best is not read: a small model that is given the same fact of five subjects takes any of
them. Nor, where an earlier turn names a document, is another one that has no word of the query which the named one
lacks: of two dozen price lists, all have the item that "What about a service?" asks for. A text that has all words of
the named title is about the same subject, whatever its own title is: it is not left out for either reason. Words are
sent as hashes of their first letters; in scripts that put no spaces between words, of single characters or of three at
a time.
"""

from __future__ import annotations

import math
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memory3.errors import InvalidInput

STEM = 6
"""Letters of a word that count: "populations" is "popula", as "population" is."""
EARLIER_SHARE = 0.75
"""Of the title's weight for a document that an earlier turn names, where the query names none: decision 0005."""
_SATURATION, _LENGTH_SHARE = 1.2, 0.75
TRIGRAM = 3
"""Characters of a word in scripts whose words are several letters without spaces between them (docs/quality.md)."""
ALONE = r"\u3040-\u30ff\u3400-\u9fff"
"""Kana and Han: each character is a word."""
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese and Khmer, with their vowels and tone marks."""
MARKS = "".join(chr(n) for n in range(0x0900, 0x0E00) if unicodedata.category(chr(n))[0] == "M")
"""Vowels and other signs within words of the scripts from Devanagari to Sinhala; no letters to Unicode."""
_WORD = re.compile(rf"([{UNSPACED}]+)|([{ALONE}]|(?:[^\W{ALONE}{UNSPACED}]+[{MARKS}]*)+)")
_ARABIC = {0x0640: None, 0x0670: None, **dict.fromkeys(range(0x064B, 0x0660))} | str.maketrans("آأإىة", "ااايه")
"""Vowel marks and lengthening, which few write, and letters that are written in two ways."""
_ARTICLE = re.compile(r"(?:[وفبك]?ال|لل)(?=..)")
"""The Arabic article, alone or after a one-letter word."""
_ASCII = bytes(c if c == ord("_") or chr(c).isalnum() else ord(" ") for c in range(128)).lower().ljust(256)
"""Letters and digits in lower case, all else blank: words of ASCII texts in half the time."""


@dataclass(frozen=True)
class Ranking:
    """How words count beside the cosines of an embedder, and when too little is left to read a memory.

    The defaults are MiniLM's; `memory-model calibrate-retrieval` measures those of any embedder. word_weight: of BM25.
    title_weight: of a document that the query names. largest_drop: a candidate whose score is lower than the best one's
    by more is left out.
    """

    word_weight: float = 0.02
    title_weight: float = 0.2
    largest_drop: float = 0.12

    def __post_init__(self) -> None:
        """Raise InvalidInput for what is no finite number of 0 or more."""
        if not all(math.isfinite(value) and value >= 0 for value in (vars(self).values())):
            raise InvalidInput(f"a ranking has weights of 0 or more, not {self}")


DEFAULT_RANKING = Ranking()


class QueryWords(tuple[int, ...]):
    """The distinct words of a query.

    earlier: those of the turns before it, the newest first. ranking: how all of them count.
    """

    earlier: tuple[tuple[int, ...], ...]
    ranking: Ranking

    def __new__(
        cls, words: Iterable[int], earlier: Iterable[Iterable[int]] = (), ranking: Ranking = DEFAULT_RANKING
    ) -> QueryWords:
        """The hashes, as `query_words` returns them."""
        made = super().__new__(cls, words)
        made.earlier, made.ranking = tuple(tuple(turn) for turn in earlier), ranking
        return made

    @classmethod
    def of(cls, words: Sequence[int]) -> QueryWords:
        """These words, whose turns and ranking are the defaults if they have none."""
        return words if isinstance(words, QueryWords) else cls(words)


def text_words(text: str) -> np.ndarray:
    """Every word of a text in its order, repeated ones too: CRC-32 of its lower-case stem, uint32 [words]."""
    if text.isascii():
        return np.array([zlib.crc32(word[:STEM]) for word in text.encode().translate(_ASCII).split()], dtype=np.uint32)
    return np.array([zlib.crc32(stem.encode()) for stem in _stems(text)], dtype=np.uint32)


def _stems(text: str) -> Iterator[str]:
    """What is hashed of each word of a text, as retrieval.proto (QueryWords) specifies it."""
    for run, word in _WORD.findall(text.lower().translate(_ARABIC)):
        if run:
            yield from trigrams(run)
        else:
            article = _ARTICLE.match(word)
            yield word[article.end() if article else 0 :][:STEM]


def trigrams(run: str) -> list[str]:
    """The words of a run of UNSPACED characters: every three of them, or all of a shorter run."""
    return [run[start : start + TRIGRAM] for start in range(max(1, len(run) - TRIGRAM + 1))]


def query_words(text: str) -> list[int]:
    """The distinct words of a query, in ascending order of their hashes."""
    hashes: list[int] = np.unique(text_words(text)).tolist()
    return hashes


def lexical_scores(words: Sequence[int], candidates: Sequence[np.ndarray]) -> np.ndarray:
    """BM25 of each candidate, float64 [n], the candidates (as text_words makes them) being the whole collection."""
    wanted = np.unique(np.asarray(words, dtype=np.uint32))
    lengths = np.array([len(c) for c in candidates], dtype=np.int64)
    if not len(wanted) or not lengths.sum():
        return np.zeros(len(candidates))
    # One pass over the words of all candidates: which are in the query, and how often each candidate has each of them.
    every = np.concatenate(candidates)
    indices = np.searchsorted(wanted, every)
    indices[indices == len(wanted)] = 0
    requested = np.flatnonzero(wanted[indices] == every)
    cells = np.repeat(np.arange(len(candidates)) * len(wanted), lengths)[requested] + indices[requested]
    counts = np.bincount(cells, minlength=len(candidates) * len(wanted)).reshape(len(candidates), -1)
    holding = np.count_nonzero(counts, axis=0)
    rarity = np.log1p((len(candidates) - holding + 0.5) / (holding + 0.5))
    norm = 1 - _LENGTH_SHARE + _LENGTH_SHARE * lengths / max(1.0, float(lengths.mean()))
    saturated = counts * (_SATURATION + 1) / (counts + _SATURATION * norm[:, None])
    return np.asarray(saturated @ rarity)


def ranked(
    words: Sequence[int],
    cosines: Sequence[float],
    candidates: Sequence[np.ndarray],
    titles: Sequence[Sequence[int]] = (),
    drop: float | None = None,
    least: float | None = None,
) -> list[tuple[int, float]]:
    """Indices of the candidates with their scores, best first; equal ones keep their order by vector.

    words: those of a query; QueryWords may have earlier turns and a ranking. titles: the words of each candidate's
    title, or nothing; a query, or an earlier turn, may name it by having all of them. least: candidates that score
    lower are left out.

    drop: so are those that score lower than the best by more, and, beside a document that only an earlier turn names,
    those without a word of the query that it lacks. A text that mentions a named title counts as one of it, and is kept
    in any case if its words answer the query's better than the best one's. None keeps all.
    """
    query = QueryWords.of(words)
    lexical = lexical_scores(query, candidates)
    untitled = np.asarray(cosines, dtype=np.float64) + query.ranking.word_weight * lexical
    named, earlier = _named(query, titles) if titles else (np.zeros(len(untitled), dtype=bool), False)
    of_titles = (EARLIER_SHARE if earlier else 1) * query.ranking.title_weight * named
    scores = untitled + of_titles
    indices = np.argsort(-scores, kind="stable")
    if drop is not None and len(indices):
        of_mentions = _of_mentions(of_titles, titles, candidates)
        near = untitled + of_mentions >= scores[indices[0]] - drop
        near |= (of_mentions > of_titles) & (lexical > lexical[indices[0]])
        if earlier:
            near &= ~_adds_nothing(query, candidates, named & near) | (of_mentions > of_titles)
        indices = indices[near[indices]]
    if least is not None:
        indices = indices[scores[indices] >= least]
    return list(zip(indices.tolist(), scores[indices].tolist(), strict=True))


def _named(query: QueryWords, titles: Sequence[Sequence[int]]) -> tuple[np.ndarray, bool]:
    """Which candidates have a title that the query names, or else the newest earlier turn that names one; which it is.

    Returns bool [n], and whether an earlier turn named them.
    """
    for turn in ((), *query.earlier):
        requested = set(query).union(turn)
        named = np.array([bool(title) and requested.issuperset(title) for title in titles], dtype=bool)
        if named.any():
            return named, bool(turn)
    return np.zeros(len(titles), dtype=bool), False


def _adds_nothing(words: Sequence[int], candidates: Sequence[np.ndarray], named: np.ndarray) -> np.ndarray:
    """Which candidates have words of the query, but no other ones of it than the named candidates; bool [n]."""
    requested = set(words)
    found = [requested.intersection(candidate.tolist()) for candidate in candidates]
    known = set().union(*(found[index] for index in np.flatnonzero(named)))
    return ~named & np.array([bool(of) and of <= known for of in found], dtype=bool)


def _of_mentions(
    of_titles: np.ndarray, titles: Sequence[Sequence[int]], candidates: Sequence[np.ndarray]
) -> np.ndarray:
    """As `_title_scores` returns them, and as much for a text that has all words of a title that is named."""
    most = of_titles.max(initial=0.0)
    named = {tuple(titles[index]) for index in np.flatnonzero(of_titles).tolist()}
    if not named or of_titles.all():
        return of_titles
    every = np.concatenate(candidates)
    owners = np.repeat(np.arange(len(candidates)), [len(candidate) for candidate in candidates])
    mentions = of_titles.copy()
    for title in named:
        holding = [np.bincount(owners[every == word], minlength=len(candidates)) > 0 for word in title]
        mentions[np.logical_and.reduce(holding)] = most
    return mentions


def order_texts(
    words: Sequence[int],
    cosines: Sequence[float],
    texts: Sequence[str],
    titles: Sequence[str],
    least: float | None = None,
) -> list[int]:
    """Indices of the texts that are to be read, best first: without those far below the best. titles: "" for none.

    least: as `ranked` takes it.
    """
    title_words = {title: query_words(title) for title in set(titles)}
    drop = QueryWords.of(words).ranking.largest_drop
    best = ranked(words, cosines, [text_words(t) for t in texts], [title_words[t] for t in titles], drop, least)
    return [index for index, _ in best]
