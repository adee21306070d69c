"""A stand-in for MyScale: `clickhouse_server` over chdb 0.11, which is ClickHouse 23.6.

    PYTHONPATH=FOLDER-WITH-CHDB-0.11:. python testing/myscale_server.py FOLDER PORT_FILE [PASSWORD [PORT]]

MyScale is a branch of ClickHouse 23.3, so functions, units and types that ClickHouse got after 23.6 fail here as they
fail there; those of 23.4 to 23.6 are not found. What MyScale adds is replaced by what this engine has, and what it
refuses is refused (`myscale_dialect.py`).

With MEMORY3_STATEMENTS every statement is appended to that file as a line of JSON, as it came: {sql, settings,
parameters}, of an insert without its rows.
"""

import json
import os
import sys
import tempfile
import threading
from typing import Any

from chdb.session import Session

from testing import clickhouse_server
from testing.clickhouse_server import INSERT, quoted
from testing.myscale_dialect import translated

ENGINE = threading.Lock()
"""An engine of this age runs one query at a time."""


def record(sql: bytes, settings: dict[str, str], parameters: dict[str, str]) -> None:
    """Appends a statement to the file of MEMORY3_STATEMENTS."""
    if path := os.environ.get("MEMORY3_STATEMENTS"):
        line = json.dumps({"sql": sql.decode(errors="replace"), "settings": settings, "parameters": parameters})
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


class OldSession(Session):
    """A session that may be closed, as a newer engine's connection; this engine has nothing to close."""

    def close(self) -> None:
        """Does nothing."""


class OldHandle:
    """A session of the old engine. It forgets settings, so they go in front of each statement."""

    def __init__(self, path: str) -> None:
        self.connection = OldSession(path)

    def run(self, sql: bytes, database: str, settings: dict[str, str], parameters: dict[str, str]) -> Any:
        """The result of a statement; raises with the engine's message."""
        insert = INSERT.match(sql)
        record(sql if insert is None else sql[: insert.end()], settings, parameters)
        # MyScale itself needs no setting for lightweight deletes.
        settings = {"allow_experimental_lightweight_delete": "1", **settings}
        head = [f"SET {name} = {quoted(value)}" for name, value in settings.items()]
        head += [f"SET param_{name} = {quoted(value)}" for name, value in parameters.items()]
        if database != "default":
            head.append(f"USE {database}")
        with tempfile.NamedTemporaryFile(suffix=".data") as file, ENGINE:
            if insert is None:
                statement = translated(sql.decode())
                if statement.startswith("DELETE FROM "):  # this engine has no background that would remove rows
                    statement = f"EXPLAIN AST {statement}"
            else:
                file.write(sql[insert.end() :])
                file.flush()
                statement = (
                    f"INSERT INTO {insert[1].decode()} FROM INFILE {quoted(file.name)} FORMAT {insert[2].decode()}"
                )
            return Result(self.connection.query("; ".join([*head, statement]), "TabSeparated"))


class Result:
    """A result with the interface of a newer chdb's."""

    def __init__(self, found: Any) -> None:
        self._content = b"" if found is None else bytes(found.bytes() if hasattr(found, "bytes") else found)

    def bytes(self) -> bytes:
        """What the engine printed."""
        return self._content


if __name__ == "__main__":
    clickhouse_server.Handle = OldHandle  # type: ignore[assignment, misc]
    clickhouse_server.HANDLES = 1
    clickhouse_server.main(*sys.argv[1:])
