"""References in memory, searched by question as the service searches them, without the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from memory3.errors import InvalidInput
from memory3.runtime.embedder import Embedder
from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory3.text.words import DEFAULT_RANKING, QueryWords, query_words, ranked, text_words
from memory_model.data import factbook

CANDIDATES = 50
"""Nearest by vector that the query's words put in order: the service's default (decision 0007)."""
_BLOCK_REFERENCES = 256


class ReferenceIndex:
    """References and their unit vectors float32 [n, dim]."""

    def __init__(self, references: Sequence[str], vectors: np.ndarray, embedder: Embedder) -> None:
        self.references, self.vectors, self.embedder = list(references), vectors, embedder

    @classmethod
    def of(
        cls, references: Sequence[str], embedder: Embedder, progress: Callable[[int], None] = lambda _: None
    ) -> ReferenceIndex:
        """Embed all references; progress: called with the number that are done since its last call."""
        if not references:
            raise InvalidInput("a knowledge base of no references")
        blocks = []
        for start in range(0, len(references), _BLOCK_REFERENCES):
            blocks.append(embedder.embed(references[start : start + _BLOCK_REFERENCES]))
            progress(len(blocks[-1]))
        return cls(references, np.concatenate(blocks), embedder)

    def nearest(
        self,
        queries: Sequence[str],
        k: int = 5,
        *,
        candidates: int = CANDIDATES,
        drop: float | None = DEFAULT_RANKING.largest_drop,
    ) -> list[list[int]]:
        """For each query the numbers of the k best references, best first, found as the service finds them.

        candidates: that many nearest by cosine are put in order by their words too; 0 ranks by cosine alone. drop: how
        far one may score below the best; None: always k.
        """
        words = [QueryWords(query_words(query)) for query in queries]
        return self.search(self.embedder.embed(queries), words, k, candidates=candidates, drop=drop)

    def search(
        self,
        vectors: np.ndarray,
        words: Sequence[QueryWords],
        k: int = 5,
        *,
        candidates: int = CANDIDATES,
        drop: float | None = DEFAULT_RANKING.largest_drop,
    ) -> list[list[int]]:
        """As `nearest`, for unit vectors float32 [n, dim] with the words of their queries."""
        found: list[list[int]] = []
        for of_query, vector in zip(words, vectors, strict=True):
            cosines = self.vectors @ vector
            numbers = np.argsort(-cosines, kind="stable")[: max(k, candidates)].tolist()
            if candidates:
                texts = [text_words(self.references[n]) for n in numbers]
                titles = [query_words(self.references[n].partition("\n")[0]) for n in numbers]
                best = ranked(of_query, cosines[numbers].tolist(), texts, titles, drop)
                numbers = [numbers[index] for index, _ in best]
            found.append(numbers[:k])
        return found


def references_of(documents: Path, tokenizer: Tokenizer, limit: int) -> list[str]:
    """All references of a JSONL file of {title, text}, at most `limit` tokens each, as the service splits them."""
    read = factbook.read_jsonl(documents, ("title", "text"))
    return [r for d in read for r in split(d["text"], d["title"], tokenizer.count, limit)]


def query_of(question: str, tokenizer: Tokenizer, chunk_tokens: int) -> str:
    """The query of a device: the text of the last `chunk_tokens` content tokens (decision 0005)."""
    return tokenizer.decode(tokenizer.encode(question)[-chunk_tokens:]).strip()
