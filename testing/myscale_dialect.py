"""MyScale's dialect in ClickHouse's: what MyScale adds is replaced by what an older ClickHouse has.

`distance(embedding, …)` becomes `cosineDistance(…)`, and a vector index becomes none, so that every search compares all
rows. What MyScale refuses is refused, with its words; `memory_service/stores/clickhouse/myscale.py` has the sources.
`system.parts`, which an embedded engine of that age does not have, is empty.
"""

import re

from memory_service.stores.clickhouse.myscale import BRUTE_FORCE, SEARCH_PARAMETERS

VECTOR_INDEX = re.compile(
    r"\s*ALTER TABLE (?P<table>\w+)( ON CLUSTER '\w+')? ADD VECTOR INDEX (IF NOT EXISTS )?\w+ \w+"
    r" TYPE (?P<type>\w+)\('metric_type=(L2|Cosine|IP)'\)"
)
DISTANCE = re.compile(r"\bdistance(\(('[^']*'(, )?)+\))?\(embedding, ")
WITH_BRUTE_FORCE = f", {BRUTE_FORCE} = 1"
NO_PARTS = (
    "(SELECT '' AS database, '' AS table, '' AS name, '' AS partition_id, 1 AS active, 0 AS rows, 0 AS bytes_on_disk"
    " FROM numbers(0))"
)
"""In place of `system.parts`, which the embedded engine of this age does not have."""
SETTINGS = f"(SELECT name, value, readonly FROM system.settings UNION ALL SELECT '{BRUTE_FORCE}', '0', toUInt8(0))"
INDEXES = (
    "(SELECT name AS table, database, 'nearest' AS name, 'Built' AS status, '' AS latest_failed_part,"
    " '' AS latest_fail_reason FROM system.tables WHERE startsWith(name, 'references_'))"
)
"""In place of `system.vector_indices`: one for each table of references, built."""


def refused(code: int, message: str) -> Exception:
    """An error as the engine words it."""
    return ValueError(f"Code: {code}. DB::Exception: {message}")


def translated(sql: str) -> str:
    """A statement of MyScale's dialect in ClickHouse's; raises what MyScale refuses."""
    if "VECTOR INDEX" in sql:
        found = VECTOR_INDEX.fullmatch(sql.strip())
        if found is None or found["type"] not in SEARCH_PARAMETERS:
            raise refused(62, f"Syntax error: no vector index: {sql[:200]}")
        return "SELECT 1 WHERE 0"
    for found in DISTANCE.finditer(sql):
        rest = own_select(sql, found.start())
        for clause in ("LIMIT", "ORDER BY"):
            if f" {clause} " not in rest:
                raise refused(62, f"Not support distance function without {clause} clause")
        if WITH_BRUTE_FORCE not in sql:  # they would be left out without a word
            raise refused(1002, "rows that no index has yet are not searched")
    for name, instead in (("parts", NO_PARTS), ("settings", SETTINGS), ("vector_indices", INDEXES)):
        sql = sql.replace(f"system.{name}", instead)
    return DISTANCE.sub("cosineDistance(embedding, ", sql).replace(WITH_BRUTE_FORCE, "")


def own_select(sql: str, start: int) -> str:
    """The rest of the SELECT that something is in, without the SELECTs within it."""
    depth, own = 0, []
    for character in sql[start:]:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if depth == 0:
            own.append(character)
    return "".join(own)
