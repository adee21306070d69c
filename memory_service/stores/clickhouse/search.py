"""Searches a ClickHouse engine: references by vector and words, of the newest versions of their documents alone.

    one statement    the nearest references by the vector index, of whatever version, more than are wanted,
                     and the newest committed version of each of their documents
    here             references of other versions are left out; candidates are ordered by words
    one statement    the payloads of the hits

Too few that are left widen the search: more from the index, then a comparison with every row. Rows of a document that
was committed while the index was searched are read again by their ids, so that a search finds one version of it, whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores import Found, KnowledgeBase, Query, Retrieved, StoreOptions, require_sound
from memory_service.stores.bounded_cache import BoundedCache
from memory_service.stores.clickhouse.dialect import condition_sql
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.word_ranking import Candidate, WordRanking

_INDEX_LIMIT = (
    1000  # the engine refuses more from its index (its setting max_limit_for_vector_search_queries)
)
_MARGIN = 16  # fetched beside what is wanted, for rows of other versions
_VECTORS_AT_ONCE = 8
_SKEW_S = 2.0  # by which clocks of a cluster's servers may differ
_ATTEMPTS = 3


class _Row(NamedTuple):
    """A reference near a query. distance: cosine distance."""

    distance: float
    memory_id: int
    version: int
    key: str
    title: str
    chunk: int
    crc32c: int
    text: str
    metadata: Mapping[str, str]


class _Newest(NamedTuple):
    """The newest committed version of a document. age_s: since the commit; memory_ids: only while that is short."""

    version: int
    deleted: bool
    age_s: float
    memory_ids: Sequence[int]


@dataclass(frozen=True)
class _Attempt:
    """One way to search. indexed: by the vector index; visible: among the newest versions of documents alone."""

    limit: int
    indexed: bool = False
    visible: bool = False


class Search:
    """Searches of one store, and what it keeps in memory for them. Thread-safe."""

    def __init__(self, engine: Engine, options: StoreOptions) -> None:
        """Of the options the sizes of the two caches count."""
        self._engine = engine
        self._hot: BoundedCache[bytes] = BoundedCache("payloads", options.payload_cache_bytes, len)
        self._ranking = WordRanking(options.word_cache_bytes)

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """See Store."""
        require_sound(base)
        started, rank_ns = time.perf_counter_ns(), 0
        for _ in range(_ATTEMPTS):
            with self._engine.reader() as client:
                hits = []
                for number, rows in enumerate(_Searching(self._engine, client, base, query).nearest()):
                    found = [_found(row, query) for row in rows]
                    if query.minimum_score is not None:
                        found = [hit for hit in found if hit.score >= query.minimum_score]
                    if query.words and query.words[number] and found:
                        before = time.perf_counter_ns()
                        found = self._by_words(base, query, number, found, rows)
                        rank_ns += time.perf_counter_ns() - before
                    hits.append(found[: query.k])
                searched = time.perf_counter_ns()
                wanted = {hit.memory_id for of_query in hits for hit in of_query} - query.held_ids
                payloads = self._payloads(client, base.number, wanted)
            missing = wanted - payloads.keys()
            if not missing:
                done = time.perf_counter_ns()
                search_us, rank_us = (searched - started - rank_ns) // 1000, rank_ns // 1000
                return Retrieved(hits, payloads, search_us, (done - searched) // 1000, rank_us)
            # A document was replaced and swept between the two reads: the next search finds its successor.
        raise KnowledgeBaseDamaged(
            f"knowledge base {base.name!r}: memory {min(missing)} has no payload: run `memory-service doctor`",
            knowledge_base=base.name,
        )

    def _by_words(
        self, base: KnowledgeBase, query: Query, number: int, found: Sequence[Found], rows: Sequence[_Row]
    ) -> list[Found]:
        texts = {row.memory_id: row.text for row in rows}
        candidates = [Candidate(hit.memory_id, hit.score, hit.title) for hit in found]
        best = self._ranking.best(
            base.number, query.words[number], candidates, query.maximum_drop,
            lambda ids: {memory_id: texts[memory_id] for memory_id in ids},
        )  # fmt: skip
        return [found[place] for place in best]

    def _payloads(self, client: Any, kb: int, memory_ids: set[int]) -> dict[int, bytes]:
        """Payloads from memory where they are there, the rest from the engine."""
        payloads = self._hot.get_many(kb, memory_ids)
        if cold := memory_ids - payloads.keys():
            read = payloads_of(client, kb, cold)
            # An empty one is still to be written, see `cold_start`.
            self._hot.put_many(kb, {one: payload for one, payload in read.items() if payload})
            payloads.update(read)
        return payloads


def payloads_of(client: Any, kb: int, memory_ids: set[int]) -> dict[int, bytes]:
    """Payloads by id; ids that are not there are left out. An id names its bytes, whatever the version."""
    if not memory_ids:
        return {}
    ids = ", ".join(map(str, memory_ids))
    rows = client.query(
        f"SELECT id, payload FROM payloads WHERE kb = {kb} AND id IN ({ids}) LIMIT 1 BY id SETTINGS max_threads = 1",
        column_formats={"payload": "bytes"},
    ).result_rows
    return {int(memory_id): payload for memory_id, payload in rows}


class _Searching:
    """One search for all vectors of a query."""

    def __init__(self, engine: Engine, client: Any, base: KnowledgeBase, query: Query) -> None:
        self._dialect = engine.dialect
        self._client = client
        self._base = base
        self._query = query
        self._table = f"references_{base.identity.dimension}"
        by_words = any(query.words)
        self._wanted = max(query.k, query.candidates) if by_words else query.k
        self._parameters: dict[str, Any] = {}
        self._filter = query.filter
        self._condition = condition_sql(self._filter, self._parameters)
        self._columns = ["id", "version", "document_key", "title", "chunk", "crc32c"]
        self._columns += ["text"] if query.return_text or by_words else ["'' AS text"]
        self._columns += ["metadata"] if query.return_metadata else []

    def nearest(self) -> list[list[_Row]]:
        """The nearest references of every vector, best first; as many as wanted where there are so many."""
        found: dict[int, list[_Row]] = {}
        pending = list(range(len(self._query.vectors)))
        for attempt in self._attempts():
            left = []
            for start in range(0, len(pending), _VECTORS_AT_ONCE):
                numbers = pending[start : start + _VECTORS_AT_ONCE]
                for number, (rows, complete) in self._search(numbers, attempt).items():
                    found[number] = rows[: self._wanted]
                    if not complete and len(rows) < self._wanted:
                        left.append(number)
            pending = left
            if not pending:
                break
        return [found[number] for number in range(len(self._query.vectors))]

    def _attempts(self) -> Iterator[_Attempt]:
        """From the fastest to the one that always finds all. MyScale filters before it searches its index."""
        ahead = self._wanted + max(_MARGIN, self._wanted // 2)
        filtered = self._filter is not None and not self._dialect.myscale
        if not filtered and ahead < _INDEX_LIMIT:
            yield _Attempt(ahead, indexed=True)
        if ahead < _INDEX_LIMIT:
            yield _Attempt(_INDEX_LIMIT, indexed=True)
        yield _Attempt(2 * ahead)
        yield _Attempt(self._wanted, visible=True)

    def _search(self, numbers: Sequence[int], attempt: _Attempt) -> dict[int, tuple[list[_Row], bool]]:
        """Visible rows near these vectors, nearest first, and whether there are no others."""
        started = time.monotonic()
        parameters = dict(self._parameters)
        inner = []
        for number in numbers:
            distance, bound = self._dialect.distance(self._query.vectors[number], f"vector{number}")
            parameters |= bound
            inner.append(self._nearest_sql(distance, attempt))
        names = ", ".join(["distance", *(column.removeprefix("'' AS ") for column in self._columns)])
        found = ", ".join(
            f"(SELECT groupArray(({names})) FROM ({sql})) AS found{place}" for place, sql in enumerate(inner)
        )
        places = range(len(inner))
        all_rows = " UNION ALL ".join(
            f"SELECT {place} AS place, arrayJoin(found{place}) AS r" for place in places
        )
        keys = ", ".join(f"arrayMap(x -> x.4, found{place})" for place in places)
        width = len(self._columns) + 1
        rows = self._client.query(
            # What is named in WITH as a value is computed once, whoever uses it.
            f"WITH {found} SELECT place, newest, gone, age, ids, {', '.join(f'r.{n}' for n in range(1, width + 1))}"
            f" FROM ({all_rows}) AS near LEFT JOIN ("
            "SELECT key, max(version) AS newest, argMax(deleted, version) AS gone,"
            " dateDiff('millisecond', argMax(stored_at, version), now64(6)) AS age,"
            " if(age < 60000, argMax(memory_ids, version), []) AS ids"
            f" FROM documents WHERE kb = {self._base.number} AND key IN (SELECT arrayJoin(arrayConcat({keys})))"
            f" GROUP BY key) AS versions ON versions.key = near.r.4 SETTINGS {self._dialect.threads}"
            f"{'' if attempt.indexed else self._dialect.exact}",
            parameters=parameters,
        ).result_rows
        elapsed_s = time.monotonic() - started
        near: dict[int, list[_Row]] = {number: [] for number in numbers}
        newest: dict[str, _Newest] = {}
        for place, version, gone, age_ms, ids, *columns in rows:
            row = _row(columns)
            near[numbers[place]].append(row)
            newest[row.key] = _Newest(int(version), bool(gone), age_ms / 1000, ids)
        recent = [
            one
            for one in newest.values()
            if one.version and not one.deleted and one.age_s < elapsed_s + _SKEW_S
        ]
        return {
            number: self._visible(number, of_one, newest, recent, attempt) for number, of_one in near.items()
        }

    def _nearest_sql(self, distance: str, attempt: _Attempt) -> str:
        """The rows nearest by one vector, of whatever version unless the attempt says `visible`."""
        where = f"FROM {self._table} WHERE kb = {self._base.number}"
        nearest = f"ORDER BY distance LIMIT {attempt.limit}"
        columns = ", ".join([f"{distance} AS distance", *self._columns])
        if attempt.indexed and not self._dialect.myscale and self._filter is not None:
            # The filter goes over what the index found.
            columns += "" if self._query.return_metadata else ", metadata"
            return f"SELECT * FROM (SELECT {columns} {where} {nearest}) WHERE {self._condition}"
        if attempt.visible:
            where += (
                f" AND (document_key, version) {'GLOBAL ' if self._dialect.cluster else ''}IN"
                f" (SELECT key, version FROM documents FINAL WHERE kb = {self._base.number} AND deleted = 0)"
            )
        if self._filter is not None:
            where += f" AND {self._condition}"
        return f"SELECT {columns} {where} {nearest}"

    def _visible(
        self,
        number: int,
        rows: list[_Row],
        newest: Mapping[str, _Newest],
        recent: Sequence[_Newest],
        attempt: _Attempt,
    ) -> tuple[list[_Row], bool]:
        # A comparison with every row that finds fewer than it may has found all; the index also finds fewer where
        # rows are masked by a deletion.
        complete = (not attempt.indexed and len(rows) < attempt.limit) or attempt.visible
        farthest = max((row.distance for row in rows), default=0.0)
        visible = {row.memory_id: row for row in rows if _shown(row, newest)}
        for row in self._by_id(number, [memory_id for one in recent for memory_id in one.memory_ids]):
            if _shown(row, newest) and (complete or row.distance <= farthest):
                visible[row.memory_id] = row
        return sorted(visible.values(), key=lambda row: (row.distance, row.memory_id)), complete

    def _by_id(self, number: int, memory_ids: Sequence[int]) -> list[_Row]:
        if not memory_ids:
            return []
        distance, bound = self._dialect.distance(self._query.vectors[number])
        columns = ", ".join([f"{distance} AS distance", *self._columns])
        rows = self._client.query(
            f"SELECT {columns} FROM {self._table} WHERE kb = {self._base.number} AND {self._condition}"
            f" AND id IN ({', '.join(map(str, memory_ids))}) SETTINGS {self._dialect.threads}",
            parameters=self._parameters | bound,
        ).result_rows
        return [_row(columns) for columns in rows]


def _row(columns: Sequence[Any]) -> _Row:
    distance, memory_id, version, key, title, chunk, crc32c, text, *metadata = columns
    return _Row(
        float(distance), int(memory_id), int(version), key, title, int(chunk), int(crc32c), text,
        dict(metadata[0]) if metadata else {},
    )  # fmt: skip


def _shown(row: _Row, newest: Mapping[str, _Newest]) -> bool:
    one = newest.get(row.key)
    return one is not None and one.version == row.version and not one.deleted


def _found(row: _Row, query: Query) -> Found:
    return Found(
        memory_id=row.memory_id, score=1.0 - row.distance, document_key=row.key, title=row.title,
        chunk_number=row.chunk, crc32c=row.crc32c, text=row.text if query.return_text else None,
        rank_score=1.0 - row.distance, metadata=row.metadata if query.return_metadata else None,
    )  # fmt: skip
