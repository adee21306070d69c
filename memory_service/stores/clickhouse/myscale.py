"""What MyScale has that ClickHouse has not: its vector indexes, the search by `distance()`, and their status.

MyScale is a branch of ClickHouse 23.3. "Docs" is https://docs.myscale.com/docs/en/vector-search, "source" is
https://github.com/myscale/MyScaleDB. No MyScale server was available: these rules were read there, and
`testing/myscale_server.py` enforces them on an older ClickHouse.

- Docs, "Basic Vector Search": `distance()` goes with ORDER BY and LIMIT; source (TreeRewriter.cpp): it is an error
  otherwise. So only a search by the index uses it; what compares every row uses ClickHouse's own `cosineDistance()`.
- Docs, "metric_type": the cosine distance is 1 - the cosine similarity, as ClickHouse's.
- Docs, "Vector Search with Filters": conditions of WHERE hold before the index is searched.
- Docs: an index is built in the background, one for each part of a table. Source (Settings.h): rows of a part without
  one are searched only with `enable_brute_force_vector_search`, which is off by default and unknown to older servers;
  these search such rows always (docs, "InProgress"). It is set where the server has it, else what was just written
  would not be found.
- Source (tests/queries/2_vector_search): replicated tables build the index on their replicas, distributed tables pass
  `distance()` on with its LIMIT, and rows that a lightweight DELETE removed are not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memory3.errors import InvalidInput

BRUTE_FORCE = "enable_brute_force_vector_search"
"""Setting by which rows without an index are searched too."""
DEFAULT_TYPE = "SCANN"

_ALPHA = {"alpha": (1.0, 4.0)}
_IVF = {"nprobe": (1, 1 << 20)}
_HNSW = {"ef_s": (16, 1024)}
SEARCH_PARAMETERS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "SCANN": _ALPHA,
    "MSTG": _ALPHA,
    "FLAT": {},
    "IVFFLAT": _IVF,
    "IVFSQ": _IVF,
    "HNSWFLAT": _HNSW,
    "HNSWSQ": _HNSW,
}
"""Types of index and what a search may set, from least to most: docs, "Configuration Options"; source, parameter check.

SCANN is in MyScale's open source and the default here. MSTG, which the docs recommend, is in MyScale's cloud alone.
A larger alpha (its default is 3), nprobe (1) or ef_s (50) finds more of the nearest and takes longer.
"""
_PARAMETER = re.compile(r"(\w+)=([0-9]+(?:\.[0-9]+)?)")
_FAILED = (
    "SELECT table, name, latest_failed_part, latest_fail_reason FROM {} WHERE database = currentDatabase()"
    " AND status = 'Error' ORDER BY table, name"
)


@dataclass(frozen=True)
class VectorIndex:
    """Type and search parameters ("alpha=3", separated by commas) of the indexes; raises InvalidInput."""

    type: str = DEFAULT_TYPE
    search: str = ""

    def __post_init__(self) -> None:
        known = SEARCH_PARAMETERS.get(self.type)
        if known is None:
            types = ", ".join(SEARCH_PARAMETERS)
            raise InvalidInput(f"vector index {self.type!r}: MyScale has {types}")
        for parameter in self._parameters():
            found = _PARAMETER.fullmatch(parameter)
            if found is None or found[1] not in known:
                allowed = ", ".join(f"{name}=NUMBER" for name in known) or "none"
                raise InvalidInput(f"search parameter {parameter!r} of a {self.type} index: it takes {allowed}")
            least, most = known[found[1]]
            if not least <= float(found[2]) <= most:
                raise InvalidInput(f"search parameter {parameter!r} of a {self.type} index: {least:g} to {most:g}")

    def _parameters(self) -> list[str]:
        return [parameter.strip() for parameter in self.search.split(",")] if self.search else []

    def added_to(self, table: str) -> str:
        """The statement that adds it to a table whose `embedding` has a constraint on its length, as the docs want."""
        return (
            f"ALTER TABLE {table} ADD VECTOR INDEX IF NOT EXISTS nearest embedding"
            f" TYPE {self.type}('metric_type=Cosine')"
        )

    def distance(self, vector: np.ndarray) -> str:
        """The distance of `embedding` to a vector, by the index; its statement has ORDER BY and LIMIT."""
        parameters = ", ".join(f"'{parameter}'" for parameter in self._parameters())
        return f"distance{f'({parameters})' if parameters else ''}(embedding, {literal(vector)})"


def literal(vector: np.ndarray) -> str:
    """A vector as SQL. Every number has a point or an exponent: the docs warn of whole ones, which are no Float32."""
    return str(np.asarray(vector, np.float32).tolist())


def failures(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Indexes whose building failed, of the rows of `failed_sql`: their rows are compared one by one meanwhile."""
    for table, name, part, reason in rows:
        yield f"index {name} of {table}, part {part}: {str(reason)[:300]}"


def failed_sql(indices: str) -> str:
    """Reads the indexes whose building failed. indices: `system.vector_indices`, of one server or all shards."""
    return _FAILED.format(indices)
