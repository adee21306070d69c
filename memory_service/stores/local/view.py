"""What one search works on: files, living rows and index of one moment; it stays whole while batches go on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores import Found, Query, Retrieved, StoredMemory
from memory_service.stores.local.bank import Bank
from memory_service.stores.local.documents import Hit
from memory_service.stores.local.generation import Generation
from memory_service.stores.local.living import Living
from memory_service.stores.local.vector_index import Nearest, VectorIndex, best_of, nearest_among
from memory_service.stores.word_ranking import Candidate, WordRanking

_AT_ONCE = 8
"""Query vectors that are searched on the event loop: a millisecond's worth."""
_Row = tuple[int, float, Hit]
"""(row, score, what is known of it)."""


class _Asked(NamedTuple):
    """One query vector, of unit length, and how many rows near it are wanted."""

    metadata: Mapping[str, str]
    vector: np.ndarray
    wanted: int


def _asked(query: Query) -> Iterator[_Asked]:
    """Each vector of a query: with words there must be something to put in order."""
    for number, vector in enumerate(query.vectors):
        words = query.words and query.words[number]
        yield _Asked(
            query.metadata_filter, unit(vector), max(query.k, query.candidates) if words else query.k
        )


@dataclass(frozen=True)
class View:
    """rows: how many of the generation's rows are true. Thread-safe."""

    generation: Generation
    living: Living
    index: VectorIndex
    rows: int

    def retrieve(self, queries: Sequence[Query], kb: int, ranking: WordRanking) -> list[Retrieved]:
        """See Store; `kb` is the number that `ranking` knows the knowledge base by. Payloads are slices of the map.

        Searched is for all queries together: what each is told of the time is that of all.
        """
        started = time.perf_counter_ns()
        kept = self._searched(queries)
        hits = self._hits(queries, kept)
        found = [
            _named(of_query, hits[query.return_text]) for query, of_query in zip(queries, kept, strict=True)
        ]
        searched_us = (time.perf_counter_ns() - started) // 1000
        return [
            self._retrieved(query, of_query, searched_us, kb, ranking)
            for query, of_query in zip(queries, found, strict=True)
        ]

    def retrieve_at_once(self, query: Query) -> Retrieved | None:
        """As `retrieve`, for one query whose hits were all read before; None where the disk would be asked."""
        if query.words or query.metadata_filter or query.return_text or len(query.vectors) > _AT_ONCE:
            return None
        if not self.index.is_at_hand(self.rows):
            return None
        # One function and no values in between: most of an answer's time is Python's, so this is `retrieve` by hand.
        started = time.perf_counter_ns()
        generation, least = self.generation, query.minimum_score
        of_query = query.vectors
        units = (
            unit(of_query[0])[None] if len(of_query) == 1 else np.array([unit(vector) for vector in of_query])
        )
        found = self.index.search(generation.vectors.rows(self.rows), units, query.k, self.living)
        if least is not None:
            found = [[near for near in of_vector if near[1] >= least] for of_vector in found]
        rows = {row for of_vector in found for row, _ in of_vector}
        known = generation.documents.remembered(rows)
        if len(known) < len(rows):
            return None
        searched = time.perf_counter_ns()
        payloads: dict[int, bytes | memoryview] = {}
        crcs: dict[int, int] = {}
        bank, view = None, memoryview(b"")
        for row in sorted(rows, reverse=True):
            if bank is None or row < bank.first_row:
                bank = generation.bank_of(row)
                view = bank.file.view(bank.size_for(row + 1))
            memory_id, payload, crcs[row], was_checked = bank.slice_in(view, row)
            if not was_checked or memory_id != known[row].memory_id:
                return None
            if memory_id not in query.held_ids:
                payloads[memory_id] = payload
        hits = [
            [Found((hit := known[row]).memory_id, score, hit.key, hit.title, hit.chunk, crcs[row], None)
             for row, score in of_vector]
            for of_vector in found
        ]  # fmt: skip
        ended = time.perf_counter_ns()
        return Retrieved(hits, payloads, (searched - started) // 1000, (ended - searched) // 1000)

    def _searched(self, queries: Sequence[Query]) -> list[list[Nearest]]:
        """What is nearest to each vector of each query, less what scores too low."""
        vectors = self.generation.vectors.rows(self.rows)
        nearest = iter(self._nearest(vectors, [one for query in queries for one in _asked(query)]))
        kept = []
        for query in queries:
            least = query.minimum_score
            of_query = [next(nearest) for _ in query.vectors]
            if least is not None:
                of_query = [[near for near in of_vector if near[1] >= least] for of_vector in of_query]
            kept.append(of_query)
        return kept

    def _nearest(self, vectors: np.ndarray, asked: Sequence[_Asked]) -> list[Nearest]:
        """The nearest rows of each, those of one count and without a filter by one search."""
        nearest: dict[int, Nearest] = {}
        together: dict[int, list[int]] = {}
        for place, one in enumerate(asked):
            if one.metadata:
                among = self._among(one.metadata)
                near = among[nearest_among(vectors[among], one.vector, one.wanted, None)].tolist()
                (nearest[place],) = best_of(vectors, one.vector[None], [near], one.wanted)
            else:
                together.setdefault(one.wanted, []).append(place)
        for wanted, places in together.items():
            of_places = [asked[place].vector for place in places]
            stacked = of_places[0][None] if len(places) == 1 else np.array(of_places)
            nearest.update(zip(places, self.index.search(vectors, stacked, wanted, self.living), strict=True))
        return [nearest[place] for place in range(len(asked))]

    def _among(self, metadata: Mapping[str, str]) -> np.ndarray:
        """Living rows, int64, of the documents whose metadata has all of these values."""
        parts = self.generation.documents.rows_with(metadata)
        rows = np.concatenate([np.empty(0, np.int64), *(np.arange(p.start, p.stop) for p in parts)])
        return rows[rows < self.rows]

    def _hits(self, queries: Sequence[Query], kept: Sequence[list[Nearest]]) -> dict[bool, dict[int, Hit]]:
        """What is known of the rows, with texts and without: all queries' rows are asked for together."""
        rows: dict[bool, set[int]] = {}
        for query, of_query in zip(queries, kept, strict=True):
            wanted = rows.setdefault(query.return_text, set())
            for of_vector in of_query:
                wanted.update([row for row, _ in of_vector])
        documents = self.generation.documents
        hits = {
            texts: documents.hits(list(wanted), with_text=texts) if wanted else {}
            for texts, wanted in rows.items()
        }
        if missing := [row for texts, found in hits.items() for row in rows[texts] if row not in found]:
            raise KnowledgeBaseDamaged(f"row {missing[0]} has no text: run `memory-service doctor`")
        return hits

    def _retrieved(
        self, query: Query, found: list[list[_Row]], searched_us: int, kb: int, ranking: WordRanking
    ) -> Retrieved:
        """One query's answer; searched_us: how long the search took."""
        started = time.perf_counter_ns()
        if query.words:
            found = [
                self._ordered(rows, words, query, kb, ranking)
                for rows, words in zip(found, query.words, strict=True)
            ]
        ranked = time.perf_counter_ns()
        crcs, payloads = self._payloads(
            {row: hit.memory_id for rows in found for row, _, hit in rows}, query.held_ids
        )
        hits = [
            [
                Found(
                    hit.memory_id, score, hit.key, hit.title, hit.chunk, crcs[row],
                    hit.text if query.return_text else None,
                )
                for row, score, hit in rows
            ]
            for rows in found
        ]  # fmt: skip
        rank_us = (ranked - started) // 1000 if query.words else 0
        return Retrieved(
            hits, payloads, searched_us + rank_us, (time.perf_counter_ns() - ranked) // 1000, rank_us
        )

    def _ordered(
        self, rows: list[_Row], words: Sequence[int], query: Query, kb: int, ranking: WordRanking
    ) -> list[_Row]:
        """The first k by vector and words."""
        if not words or not rows:
            return rows
        candidates = [Candidate(hit.memory_id, score, hit.title) for _, score, hit in rows]
        row_of = {hit.memory_id: row for row, _, hit in rows}

        def texts(memory_ids: Sequence[int]) -> dict[int, str]:
            read = self.generation.documents.hits([row_of[one] for one in memory_ids], with_text=True)
            return {hit.memory_id: hit.text or "" for hit in read.values()}

        best = ranking.best(kb, words, candidates, query.maximum_drop, texts)[: query.k]
        return [rows[place] for place in best]

    def _payloads(
        self, memory_ids: Mapping[int, int], held: frozenset[int]
    ) -> tuple[dict[int, int], dict[int, bytes | memoryview]]:
        """CRC-32C of every row, and the payloads, by memory id, of those not held. memory_ids: of rows."""
        crcs: dict[int, int] = {}
        payloads: dict[int, bytes | memoryview] = {}
        of_bank: dict[Bank, list[int]] = {}
        for row in memory_ids:
            of_bank.setdefault(self.generation.bank_of(row), []).append(row)
        for bank, rows in of_bank.items():
            view = bank.file.view(bank.size_for(max(rows) + 1))
            for row in rows:
                found, payload, crcs[row], known = bank.slice_in(view, row)
                memory_id = memory_ids[row]
                if found != memory_id:
                    raise KnowledgeBaseDamaged(
                        f"record {row} of {bank.file.path.name} is of another memory: run `memory-service doctor`"
                    )
                if memory_id not in held:
                    payloads[memory_id] = payload if known else bank.payload(row, bank.read_in(view, row))
        return crcs, payloads

    def memories(self, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        rows = [row for row in self.generation.documents.rows_after(after_id, count) if row < self.rows]
        hits = self.generation.documents.hits(rows, with_text=True)
        vectors = self.generation.vectors.rows(self.rows)
        crcs, payloads = self._payloads({row: hits[row].memory_id for row in rows}, frozenset())
        return [
            StoredMemory(
                hits[row].memory_id, hits[row].key, hits[row].title, hits[row].chunk, hits[row].text or "",
                np.array(vectors[row]), payloads[hits[row].memory_id], crcs[row],
            )
            for row in rows
        ]  # fmt: skip


def _named(of_query: Sequence[Nearest], hits: Mapping[int, Hit]) -> list[list[_Row]]:
    return [[(row, score, hits[row]) for row, score in of_vector] for of_vector in of_query]


def unit(vector: np.ndarray) -> np.ndarray:
    """The vector as float32 at length one, so that inner products are cosines."""
    vector = np.asarray(vector, np.float32)
    length = math.sqrt(vector.dot(vector))
    return vector if abs(length - 1) < 1e-6 else vector / np.float32(length)
