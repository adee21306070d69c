"""What one search works on: files, living rows and index of one moment; it stays whole while batches go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores import Found, Query, Retrieved, StoredMemory
from memory_service.stores.local.documents import Hit
from memory_service.stores.local.generation import Generation
from memory_service.stores.local.living import Living
from memory_service.stores.local.vector_index import VectorIndex, best_of, nearest_among
from memory_service.stores.word_ranking import Candidate, WordRanking


@dataclass(frozen=True)
class View:
    """rows: how many of the generation's rows are true. Thread-safe."""

    generation: Generation
    living: Living
    index: VectorIndex
    rows: int

    def retrieve(self, query: Query, kb: int, ranking: WordRanking) -> Retrieved:
        """See Store; `kb` is the number that `ranking` knows the knowledge base by. Payloads are slices of the map."""
        started = time.perf_counter_ns()
        vectors = self.generation.vectors.rows(self.rows)
        among = self._among(query.metadata_filter) if query.metadata_filter else None
        found = [
            self._search(vectors, among, query, number, kb, ranking) for number in range(len(query.vectors))
        ]
        searched = time.perf_counter_ns()
        rank_us = sum(ranked_ns for _, ranked_ns in found) // 1000
        rows = {row: hit for of_query, _ in found for row, _, hit in of_query}
        crcs, payloads = self._payloads(rows, query.held_ids)
        hits = [
            [
                Found(
                    memory_id=hit.memory_id, score=score, document_key=hit.key, title=hit.title,
                    chunk_number=hit.chunk, crc32c=crcs[row], text=hit.text if query.return_text else None,
                )
                for row, score, hit in of_query
            ]
            for of_query, _ in found
        ]  # fmt: skip
        done = time.perf_counter_ns()
        return Retrieved(hits, payloads, (searched - started) // 1000, (done - searched) // 1000, rank_us)

    def _among(self, metadata: Mapping[str, str]) -> np.ndarray:
        """Living rows, int64, of the documents whose metadata has all of these values."""
        parts = self.generation.documents.rows_with(metadata)
        rows = np.concatenate([np.empty(0, np.int64), *(np.arange(p.start, p.stop) for p in parts)])
        return rows[rows < self.rows]

    def _search(
        self, vectors: np.ndarray, among: np.ndarray | None, query: Query, number: int, kb: int,
        ranking: WordRanking,
    ) -> tuple[list[tuple[int, float, Hit]], int]:  # fmt: skip
        """(row, score, hit) of query `number`, best first; and how long ordering them by words took, in ns."""
        words = query.words[number] if query.words else ()
        vector = unit(query.vectors[number])
        count = max(query.k, query.candidates) if words else query.k
        if among is not None:
            places = nearest_among(vectors[among], vector, count, None)
            scores, rows = best_of(vectors, vector, among[places], count)
        else:
            scores, rows = self.index.search(vectors, vector, count, self.living)
        if query.minimum_score is not None:
            near = scores >= query.minimum_score
            scores, rows = scores[near], rows[near]
        numbers, cosines = rows.tolist(), scores.tolist()
        if not numbers:
            return [], 0
        hits = self.generation.documents.hits(numbers, with_text=query.return_text)
        if missing := [row for row in numbers if row not in hits]:
            raise KnowledgeBaseDamaged(f"row {missing[0]} has no text: run `memory-service doctor`")
        best, started = list(range(len(numbers))), time.perf_counter_ns()
        if words:
            candidates = [
                Candidate(hits[row].memory_id, score, hits[row].title)
                for row, score in zip(numbers, cosines, strict=True)
            ]
            row_of = {hits[row].memory_id: row for row in numbers}

            def texts(memory_ids: Sequence[int]) -> dict[int, str]:
                read = self.generation.documents.hits([row_of[one] for one in memory_ids], with_text=True)
                return {hit.memory_id: hit.text or "" for hit in read.values()}

            best = ranking.best(kb, words, candidates, query.maximum_drop, texts)[: query.k]
        ranked_ns = time.perf_counter_ns() - started if words else 0
        return [(numbers[place], cosines[place], hits[numbers[place]]) for place in best], ranked_ns

    def _payloads(
        self, hits: Mapping[int, Hit], held: frozenset[int]
    ) -> tuple[dict[int, int], dict[int, bytes | memoryview]]:
        """CRC-32C of every row, and the payloads, by memory id, of those not held."""
        crcs: dict[int, int] = {}
        payloads: dict[int, bytes | memoryview] = {}
        for row, hit in hits.items():
            bank = self.generation.bank_of(row)
            record = bank.read(row)
            if record.memory_id != hit.memory_id:
                raise KnowledgeBaseDamaged(
                    f"record {row} of {bank.file.path.name} is of another memory: run `memory-service doctor`"
                )
            crcs[row] = record.payload_crc32c
            if hit.memory_id not in held:
                payloads[hit.memory_id] = bank.payload(row, record)
        return crcs, payloads

    def memories(self, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        rows = [row for row in self.generation.documents.rows_after(after_id, count) if row < self.rows]
        hits = self.generation.documents.hits(rows, with_text=True)
        vectors = self.generation.vectors.rows(self.rows)
        crcs, payloads = self._payloads({row: hits[row] for row in rows}, frozenset())
        return [
            StoredMemory(
                hits[row].memory_id, hits[row].key, hits[row].title, hits[row].chunk, hits[row].text or "",
                np.array(vectors[row]), payloads[hits[row].memory_id], crcs[row],
            )
            for row in rows
        ]  # fmt: skip


def unit(vector: np.ndarray) -> np.ndarray:
    """The vector as float32 at length one, so that inner products are cosines."""
    vector = np.asarray(vector, np.float32)
    length = float(np.sqrt(np.dot(vector, vector)))
    return vector if abs(length - 1) < 1e-6 else vector / np.float32(length)
