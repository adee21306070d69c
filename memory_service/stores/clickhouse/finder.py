"""Finds in a ClickHouse engine what answers a query: references by vector and words, and their payloads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores import Found, KnowledgeBase, Query, Retrieved, StoreOptions, require_sound
from memory_service.stores.bounded_cache import BoundedCache
from memory_service.stores.clickhouse.contents import payloads_of
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.clickhouse.nearest import Search, equalities
from memory_service.stores.clickhouse.visibility import Visibility
from memory_service.stores.word_ranking import Candidate, WordRanking


class Finder:
    """Searches of one store, and what it keeps in memory for them. Thread-safe.

    masked: numbers of the knowledge bases whose deleted rows the index may still find; the store adds to it.
    """

    def __init__(self, engine: Engine, visibility: Visibility, options: StoreOptions) -> None:
        """`visibility`: of what is half written. Of the options the sizes of the two caches count."""
        self.masked: set[int] = set()
        self._engine = engine
        self._visibility = visibility
        self._hot: BoundedCache[bytes] = BoundedCache("payloads", options.payload_cache_bytes, len)
        self._ranking = WordRanking(options.word_cache_bytes)

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """See Store."""
        require_sound(base)
        started = time.perf_counter_ns()
        for _ in range(2):
            with self._engine.reader() as client, self._visibility.searching(base.number) as hidden:
                found = [
                    self._search(client, base, number, query, hidden) for number in range(len(query.vectors))
                ]
                hits, rank_ns = [of_query for of_query, _ in found], sum(ranked for _, ranked in found)
                searched = time.perf_counter_ns()
                wanted = {hit.memory_id for of_query in hits for hit in of_query} - query.held_ids
                payloads = self._hot_payloads(client, base.number, wanted)
            missing = wanted - payloads.keys()
            if not missing:
                done = time.perf_counter_ns()
                search_us, rank_us = (searched - started - rank_ns) // 1000, rank_ns // 1000
                return Retrieved(hits, payloads, search_us, (done - searched) // 1000, rank_us)
            # Another process replaced a document between the two reads: the second search finds its successor.
        raise KnowledgeBaseDamaged(
            f"knowledge base {base.name!r}: memory {min(missing)} has no payload: run `memory-service doctor`",
            knowledge_base=base.name,
        )

    def _search(
        self, client: Any, base: KnowledgeBase, number: int, query: Query, hidden: frozenset[int]
    ) -> tuple[list[Found], int]:
        """The hits of query `number`, and how long ordering them by words took, in ns."""
        by_words = bool(query.words and query.words[number])
        dialect = self._engine.dialect
        search = Search(
            client, dialect, f"references_{base.identity.dimension}", base.number,
            masked=dialect.shared or base.number in self.masked, hidden=hidden,
        )  # fmt: skip
        found = search.nearest(
            query.vectors[number], max(query.k, query.candidates) if by_words else query.k,
            metadata_filter=equalities(query.filter), with_text=query.return_text,
        )  # fmt: skip
        if query.minimum_score is not None:
            found = [hit for hit in found if hit.score >= query.minimum_score]
        if not (by_words and found):
            return found, 0
        started = time.perf_counter_ns()

        def texts(memory_ids: Sequence[int]) -> dict[int, str]:
            rows = client.query(
                f"SELECT id, text FROM references_{base.identity.dimension} WHERE kb = {base.number}"
                f" AND id IN ({', '.join(map(str, memory_ids))}) SETTINGS max_threads = 1"
            ).result_rows
            return {int(memory_id): text for memory_id, text in rows}

        candidates = [Candidate(hit.memory_id, hit.score, hit.title) for hit in found]
        best = self._ranking.best(base.number, query.words[number], candidates, query.maximum_drop, texts)
        best_hits = [found[place]._replace(rank_score=score) for place, score in best[: query.k]]
        return best_hits, time.perf_counter_ns() - started

    def _hot_payloads(self, client: Any, kb: int, memory_ids: set[int]) -> dict[int, bytes]:
        """Payloads from memory where they are there, the rest from the engine."""
        payloads = self._hot.get_many(kb, memory_ids)
        if cold := memory_ids - payloads.keys():
            read = payloads_of(client, kb, cold)
            # An empty one is still to be written, see `late_memories`.
            self._hot.put_many(kb, {one: payload for one, payload in read.items() if payload})
            payloads.update(read)
        return payloads
