"""Searches a ClickHouse engine: references by vector and words, of the newest versions of their documents alone.

    one statement    the nearest references by the vector index, of whatever version, more than are wanted
    here             the hits, by vector and words, as if all of them were of the newest versions
    one statement    the newest committed version of each of their documents, and the payloads of these hits
    here             the hits again, where references of other versions have to be left out

Too few that are left widen the search: more from the index, then a comparison with every row. Rows of a document that
was committed while the index was searched are read again by their ids, so that a search finds one version of it, whole.
A join of the two statements would plan for longer than both take.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from memory3.text.words import query_words, ranked
from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.clickhouse.dialect import filter_sql, quoted
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.store import Found, KnowledgeBase, Query, Retrieved, require_sound

_INDEX_LIMIT = 1000  # the engine's own, max_limit_for_vector_search_queries
_MARGIN = 16  # fetched in addition, to replace rows of other versions
_VECTORS_AT_ONCE = 8
_SKEW_S = 2.0  # by which the clocks of a cluster's servers may differ
_ATTEMPTS = 3


class _Candidate(NamedTuple):
    """A reference near a query. distance: cosine distance; words: as `text_words` makes them."""

    distance: float
    memory_id: int
    version: int
    key: str
    title: str
    chunk: int
    crc32c: int
    text: str
    words: bytes
    metadata: Mapping[str, str] | None = None


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


def retrieve(engine: Engine, base: KnowledgeBase, query: Query) -> Retrieved:
    """See Store. Thread-safe."""
    require_sound(base)
    started = time.perf_counter_ns()
    for _ in range(_ATTEMPTS):
        with engine.reader() as client:
            searching = _Searching(engine, client, base, query)
            hits = [searching.hits(number, rows) for number, rows in enumerate(searching.nearest())]
            searched = time.perf_counter_ns()
            missing = searching.read_payloads(hits)
        if not missing:
            rank_ns, fetch_ns = searching.rank_ns, time.perf_counter_ns() - searched
            search_us = (searched - started - rank_ns) // 1000
            wanted = {hit.memory_id for of_query in hits for hit in of_query} - query.held_ids
            payloads = {memory_id: searching.payloads[memory_id] for memory_id in wanted}
            return Retrieved(hits, payloads, search_us, fetch_ns // 1000, rank_ns // 1000)
        # A document was replaced and swept between the two reads: the next search finds its successor.
    raise KnowledgeBaseDamaged(
        f"knowledge base {base.name!r}: memory {min(missing)} has no payload: restore a backup",
        knowledge_base=base.name,
    )


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
    """One search for all vectors of a query. payloads: those read so far, by memory id."""

    def __init__(self, engine: Engine, client: Any, base: KnowledgeBase, query: Query) -> None:
        self._dialect = engine.dialect
        self._client = client
        self._base = base
        self._query = query
        self._table = f"references_{base.identity.dimension}"
        by_words = any(query.words)
        self._wanted = max(query.k, query.candidates) if by_words else query.k
        self._filter = query.filter
        self._condition = filter_sql(self._filter)
        self._columns = "id, version, document_key, title, chunk, crc32c"
        self._columns += ", text" if query.return_text else ", '' AS text"
        self._columns += ", words" if by_words else ", '' AS words"
        self._columns += ", metadata" if query.return_metadata else ""
        self.payloads: dict[int, bytes] = {}
        self.rank_ns = 0

    def nearest(self) -> list[list[_Candidate]]:
        """The nearest references of every vector, best first; as many as wanted where there are so many."""
        found: dict[int, list[_Candidate]] = {}
        pending = list(range(len(self._query.vectors)))
        for attempt in self._attempts():
            left = []
            for start in range(0, len(pending), _VECTORS_AT_ONCE):
                near = self._search(pending[start : start + _VECTORS_AT_ONCE], attempt)
                for number, (rows, complete) in near.items():
                    found[number] = rows[: self._wanted]
                    if not complete and len(rows) < self._wanted:
                        left.append(number)
            pending = left
            if not pending:
                break
        return [found[number] for number in range(len(self._query.vectors))]

    def hits(self, number: int, rows: Sequence[_Candidate]) -> list[Found]:
        """The hits of query `number` among its rows, nearest first."""
        query, least = self._query, self._query.minimum_score
        near = rows[: self._wanted]
        scores = [1.0 - row.distance for row in near]
        if not (query.words and query.words[number] and near):
            nearest = zip(near[: query.k], scores, strict=False)
            return [_found(row, query, score) for row, score in nearest if least is None or score >= least]
        started = time.perf_counter_ns()
        best = ranked(
            query.words[number],
            scores,
            [np.frombuffer(row.words, "<u4") for row in near],
            [query_words(row.title) if row.title else [] for row in near],
            query.maximum_drop,
            least,
        )
        self.rank_ns += time.perf_counter_ns() - started
        return [_found(near[index], query, score) for index, score in best[: query.k]]

    def read_payloads(self, hits: Sequence[Sequence[Found]]) -> set[int]:
        """Reads what is wanted of the hits and not read yet; returns the ids of those that are not there."""
        if missing := self._unread(hits):
            self.payloads |= payloads_of(self._client, self._base.number, missing)
        return self._unread(hits)

    def _unread(self, hits: Iterable[Sequence[Found]]) -> set[int]:
        wanted = {hit.memory_id for of_query in hits for hit in of_query} - self._query.held_ids
        return wanted - self.payloads.keys()

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

    def _search(self, numbers: Sequence[int], attempt: _Attempt) -> dict[int, tuple[list[_Candidate], bool]]:
        """Visible rows near these vectors, nearest first, and whether there are no others."""
        started = time.monotonic()
        parameters, parts = dict[str, Any](), []
        for number in numbers:
            vector, name = self._query.vectors[number], f"vector{number}"
            distance, bound = self._dialect.distance(vector, name, indexed=attempt.indexed)
            parameters |= bound
            parts.append(f"SELECT {number} AS number, * FROM ({self._nearest_sql(distance, attempt)})")
        rows = self._client.query(
            f"{' UNION ALL '.join(parts)} SETTINGS {self._dialect.search_settings(indexed=attempt.indexed)}",
            parameters=parameters,
            column_formats={"words": "bytes"},
        ).result_rows
        near: dict[int, list[_Candidate]] = {number: [] for number in numbers}
        for number, *columns in rows:
            near[number].append(_Candidate(*columns))
        for of_one in near.values():
            of_one.sort(key=lambda row: (row.distance, row.memory_id))
        newest = self._newest(near)
        young_s = time.monotonic() - started + (_SKEW_S if self._dialect.cluster else 0.01)
        recent = [one for one in newest.values() if not one.deleted and one.age_s <= young_s]
        return {n: self._visible(n, of_one, newest, recent, attempt) for n, of_one in near.items()}

    def _newest(self, near: Mapping[int, Sequence[_Candidate]]) -> dict[str, _Newest]:
        """The newest versions of these rows' documents; the payloads of what are probably the hits come with them."""
        keys = list({row.key for rows in near.values() for row in rows})
        if not keys:
            return {}
        ids = self._unread([self.hits(number, rows) for number, rows in near.items()])
        payloads = f" UNION ALL SELECT '', id, 0, 0, [], payload FROM payloads WHERE kb = {self._base.number}"
        payloads += f" AND id IN ({', '.join(map(str, ids))})"
        rows = self._client.query(
            # No dateDiff: it has milliseconds since ClickHouse 23.7 only, and MyScale is a branch of 23.3.
            "SELECT key, version, deleted,"
            " toUnixTimestamp64Milli(now64(3)) - toUnixTimestamp64Milli(stored_at) AS age,"
            f" if(age < 60000, memory_ids, []), '' AS payload FROM documents WHERE kb = {self._base.number}"
            f" AND key IN ({', '.join(map(quoted, keys))}){payloads if ids else ''} SETTINGS max_threads = 1",
            column_formats={"payload": "bytes"},
        ).result_rows
        self.payloads |= {int(row[1]): row[5] for row in rows if int(row[1]) in ids}
        newest: dict[str, _Newest] = {}
        for key, version, deleted, age_ms, memory_ids, _ in rows:
            if key not in newest or newest[key].version < version:
                newest[key] = _Newest(int(version), bool(deleted), age_ms / 1000, memory_ids)
        return newest

    def _nearest_sql(self, distance: str, attempt: _Attempt) -> str:
        """The rows nearest by one vector, of whatever version unless the attempt says `visible`."""
        where = f"FROM {self._table} WHERE kb = {self._base.number}"
        nearest = f"ORDER BY dist LIMIT {attempt.limit}"
        columns = f"{distance} AS dist, {self._columns}"
        if attempt.indexed and not self._dialect.myscale and self._filter is not None:
            # The filter goes over what the index found.
            shown = "dist, " + self._columns.replace("'' AS ", "")
            if not self._query.return_metadata:
                columns += ", metadata"
            return f"SELECT {shown} FROM (SELECT {columns} {where} {nearest}) WHERE {self._condition}"
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
        rows: list[_Candidate],
        newest: Mapping[str, _Newest],
        recent: list[_Newest],
        attempt: _Attempt,
    ) -> tuple[list[_Candidate], bool]:
        # A comparison with every row that finds fewer than it may has found all.
        complete = attempt.visible or (not attempt.indexed and len(rows) < attempt.limit)
        farthest = max((row.distance for row in rows), default=0.0)
        visible = {row.memory_id: row for row in rows if _shown(row, newest)}
        for row in self._by_id(number, [memory_id for one in recent for memory_id in one.memory_ids]):
            if _shown(row, newest) and (complete or row.distance <= farthest):
                visible[row.memory_id] = row
        return sorted(visible.values(), key=lambda row: (row.distance, row.memory_id)), complete

    def _by_id(self, number: int, memory_ids: Sequence[int]) -> list[_Candidate]:
        if not memory_ids:
            return []
        distance, bound = self._dialect.distance(self._query.vectors[number])
        rows = self._client.query(
            f"SELECT {distance} AS dist, {self._columns} FROM {self._table} WHERE kb = {self._base.number}"
            f" AND {self._condition} AND id IN ({', '.join(map(str, memory_ids))})"
            f" SETTINGS {self._dialect.search_settings(indexed=False)}",
            parameters=bound,
            column_formats={"words": "bytes"},
        ).result_rows
        return [_Candidate(*columns) for columns in rows]


def _shown(row: _Candidate, newest: Mapping[str, _Newest]) -> bool:
    one = newest.get(row.key)
    return one is not None and one.version == row.version and not one.deleted


def _found(row: _Candidate, query: Query, rank_score: float) -> Found:
    return Found(
        memory_id=row.memory_id,
        score=1.0 - row.distance,
        document_key=row.key,
        title=row.title,
        chunk_number=row.chunk,
        crc32c=row.crc32c,
        text=row.text if query.return_text else None,
        rank_score=rank_score,
        metadata=row.metadata,
    )
