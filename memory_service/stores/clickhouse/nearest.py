"""Vector search in ClickHouse: exact about deleted rows and metadata filters, by the index wherever it can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from memory_model.errors import InvalidInput
from memory_service.stores import Found
from memory_service.stores.clickhouse.dialect import Dialect
from memory_service.stores.filters import And, Filter, In

# The engine refuses larger limits with the vector index (its setting max_limit_for_vector_search_queries).
_INDEX_LIMIT = 1000
# Fetched beside k where rows are masked, so that one search is enough as a rule.
_MASK_MARGIN = 16

_EXACT = ", use_skip_indexes = 0"

_COLUMNS = "id, document_key, title, chunk, crc32c"


@dataclass(frozen=True)
class Search:
    """Where to search. masked: whether rows may be deleted that the index still finds; hidden: ids to leave out."""

    client: Any
    dialect: Dialect
    table: str
    kb: int
    masked: bool
    hidden: frozenset[int] = frozenset()

    def nearest(
        self, vector: np.ndarray, k: int, *, metadata_filter: Mapping[str, str], with_text: bool
    ) -> list[Found]:
        """The k references of the knowledge base nearest to `vector` (float32 [dimension]), best first.

        A lightweight DELETE only masks rows, and ClickHouse's index still finds them, as it finds the hidden ones: the
        search is then widened until k others are there. A metadata filter is applied before the search, by comparing
        with every row that passes it, so that its answer is exact. MyScale does both by itself.
        """
        distance, parameters = self.dialect.distance(vector)
        conditions = _filter(metadata_filter, parameters)
        columns = f"{_COLUMNS}, {'text' if with_text else 'NULL'}, {distance} AS distance"
        where = f"FROM {self.table} WHERE kb = {self.kb}{conditions} ORDER BY distance LIMIT"

        def search(limit: int, settings: str = "", extra: str = "") -> Any:
            sql = f"SELECT {columns}{extra} {where} {limit} SETTINGS max_threads = 1{settings}"
            return self.client.query(sql, parameters=parameters).result_rows

        enough = k + len(self.hidden)
        if self.dialect.myscale or not (metadata_filter or self.masked or self.hidden):
            return self._shown(search(enough), k)
        if metadata_filter:
            prefilter = ", vector_search_filter_strategy = 'prefilter'"
            return self._shown(search(enough, prefilter if enough <= _INDEX_LIMIT else _EXACT), k)
        limit = k + _MASK_MARGIN
        while limit <= _INDEX_LIMIT:
            if (
                self.dialect.shared or not self.masked
            ):  # a distributed table does not tell which rows are masked
                rows = living = search(limit)
            else:
                rows = search(limit, ", apply_deleted_mask = 0", ", _row_exists")
                living = [row for row in rows if row[-1]]
            shown = self._shown(living, k)
            if len(shown) == k or (len(rows) < limit and not self.dialect.shared):
                return shown
            limit *= 4
        return self._shown(search(enough, _EXACT), k)

    def _shown(self, rows: Any, k: int) -> list[Found]:
        return _hits([row for row in rows if int(row[0]) not in self.hidden][:k] if self.hidden else rows[:k])


def equalities(condition: Filter | None) -> dict[str, str]:
    """The values of a filter that is one equality or some joined by and; raises InvalidInput for another."""
    parts = () if condition is None else condition.parts if isinstance(condition, And) else (condition,)
    equal = {part.name: part.values[0] for part in parts if isinstance(part, In) and len(part.values) == 1}
    if len(equal) != len(parts):
        raise InvalidInput("this store filters by values that are equal, joined by and")
    return equal


def _filter(metadata_filter: Mapping[str, str], parameters: dict[str, Any]) -> str:
    """SQL conditions for metadata that has all of these values; their parameters are added to `parameters`."""
    conditions = ""
    for place, (name, value) in enumerate(sorted(metadata_filter.items())):
        # An absent name reads as '', so its presence is asked for too.
        conditions += f" AND mapContains(metadata, {{n{place}:String}})"
        conditions += f" AND metadata[{{n{place}:String}}] = {{v{place}:String}}"
        parameters[f"n{place}"], parameters[f"v{place}"] = name, value
    return conditions


def _hits(rows: Any) -> list[Found]:
    return [
        Found(
            memory_id=int(row[0]), document_key=row[1], title=row[2], chunk_number=int(row[3]), crc32c=int(row[4]),
            text=row[5], score=1.0 - float(row[6]),
        )
        for row in rows
    ]  # fmt: skip
