"""References in memory, searched by question as the service searches them, without the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from memory3.errors import InvalidInput
from memory3.runtime.embedder import Embedder
from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory3.text.words import DEFAULT_RANKING, QueryWords, Ranking, query_words, ranked, text_words
from memory_model.data import factbook

CANDIDATES = 50
"""Nearest by vector that the query's words put in order: the service's default (decision 0007)."""
_BLOCK_REFERENCES = 256


class ReferenceIndex:
    """References and their unit vectors float32 [n, dim].

    ranking, minimum_score: what a device reads of that embedder's results, as `ModelFolder.calibrated_for` gives them.
    """

    def __init__(
        self,
        references: Sequence[str],
        vectors: np.ndarray,
        embedder: Embedder,
        *,
        ranking: Ranking = DEFAULT_RANKING,
        minimum_score: float | None = None,
    ) -> None:
        self.references, self.vectors, self.embedder = list(references), vectors, embedder
        self.ranking, self.minimum_score = ranking, minimum_score

    @classmethod
    def of(
        cls,
        references: Sequence[str],
        embedder: Embedder,
        progress: Callable[[int], None] = lambda _: None,
        *,
        ranking: Ranking = DEFAULT_RANKING,
        minimum_score: float | None = None,
    ) -> ReferenceIndex:
        """Embed all references; progress: called with the number that are done since its last call."""
        if not references:
            raise InvalidInput("a knowledge base of no references")
        blocks = []
        for start in range(0, len(references), _BLOCK_REFERENCES):
            blocks.append(embedder.embed(references[start : start + _BLOCK_REFERENCES]))
            progress(len(blocks[-1]))
        return cls(references, np.concatenate(blocks), embedder, ranking=ranking, minimum_score=minimum_score)

    def nearest(
        self,
        queries: Sequence[str],
        k: int = 5,
        *,
        vectors: np.ndarray | None = None,
        words: Sequence[QueryWords] | None = None,
        candidates: int = CANDIDATES,
        dropping: bool = True,
    ) -> list[list[int]]:
        """For each query the numbers of the k best references, best first, found as the service finds them.

        vectors, words: float32 [n, dim] and those of a conversation, in place of the queries' own. candidates: that
        many nearest by cosine are put in order by their words too; 0 ranks by cosine alone. dropping: leave out what
        scores far below the best.
        """
        vectors = self.embedder.embed(queries) if vectors is None else vectors
        words = [QueryWords(query_words(query)) for query in queries] if words is None else words
        drop, least = self.ranking.largest_drop if dropping else None, self.minimum_score
        found: list[list[int]] = []
        for of_query, vector in zip(words, vectors, strict=True):
            cosines = self.vectors @ vector
            numbers = np.argsort(-cosines, kind="stable")[: max(k, candidates)]
            if candidates:
                near = [self.references[n] for n in numbers]
                titles = [query_words(text.partition("\n")[0]) for text in near]
                query = QueryWords(of_query, of_query.earlier, self.ranking)
                words_of = [text_words(text) for text in near]
                best = ranked(query, cosines[numbers].tolist(), words_of, titles, drop, least)
                numbers = numbers[[index for index, _ in best]]
            elif least is not None:
                numbers = numbers[cosines[numbers] >= least]
            found.append(numbers[:k].tolist())
        return found


def references_of(documents: Path, tokenizer: Tokenizer, limit: int) -> list[str]:
    """All references of a JSONL file of {title, text}, at most `limit` tokens each, as the service splits them."""
    read = factbook.read_jsonl(documents, ("title", "text"))
    return [r for d in read for r in split(d["text"], d["title"], tokenizer.count, limit)]


def query_of(question: str, tokenizer: Tokenizer, chunk_tokens: int) -> str:
    """The query of a device: the text of the last `chunk_tokens` content tokens (decision 0005)."""
    return tokenizer.decode(tokenizer.encode(question)[-chunk_tokens:]).strip()
