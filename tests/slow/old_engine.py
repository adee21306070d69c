"""Checks statements on ClickHouse 22.12, which is older than MyScale's 23.3: `chdb==0.8.0`, in a process of its own.

    PYTHONPATH=FOLDER-WITH-CHDB-0.8 python tests/slow/old_engine.py STATEMENTS < /dev/null

The file STATEMENTS has {"tables": [CREATE TABLE …], "statements": [{"sql", "settings", "parameters"}]}; standard output
gets {"read": number of statements that were executed, "problems": [text]}. Each statement's functions and settings must
be this engine's, its syntax must parse, and what reads is executed. This engine takes standard input for a table. It
keeps no MergeTree tables, so tables are in memory, for one statement, and hold one row; FINAL, which such tables do not
have, is left out.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chdb

STRING = re.compile(r"'(?:[^'\\]|\\.)*'")
CALL = re.compile(r"\b([A-Za-z_]\w*)\(")
COLUMNS = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*)\) ENGINE = \w+\(", re.DOTALL)
PARAMETER = re.compile(r"\{(\w+):([\w()]+)\}")
SETTING = re.compile(r"\b(\w+) = [^,\s]+(?:,|$)")
COMBINATORS = re.compile(r"(Array|If)+$")
NO_FUNCTIONS = {"codec", "mergetree", "replacingmergetree", "summingmergetree"}
NO_SETTINGS = {"cancel_http_readonly_queries_on_client_close"}
"""The client sends it where it thinks the server knows it; a server skips what it does not."""


def run(sql: str) -> tuple[str, str]:
    """What the engine prints as its result and as its errors; it raises none."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as errors:
        os.dup2(errors.fileno(), 2)
        try:
            result = chdb.query(sql, "TabSeparated")
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        errors.seek(0)
        content = result.get_memview() if result is not None else None
        text = "" if content is None else content.tobytes().decode(errors="replace")
        return text, errors.read().decode(errors="replace").strip()


def listed(table: str, column: str = "name") -> set[str]:
    """Names in a system table, in lower case."""
    return set(run(f"SELECT lower({column}) FROM system.{table}")[0].split())


def split(text: str) -> Iterator[str]:
    """The parts of a list between its own commas."""
    depth, start = 0, 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def in_memory(statement: str) -> tuple[str, str]:
    """A table's name, and the statements that make it in memory with one row."""
    found = COLUMNS.match(statement)
    assert found is not None, statement
    name, columns = found[1], [part for part in split(found[2]) if not part.startswith(("INDEX ", "CONSTRAINT "))]
    columns = [re.sub(r" CODEC\(\w+\)", "", column) for column in columns]
    if name == "documents":
        columns.append("written UInt8 DEFAULT if(payload_bytes > 0, 1, 2)")  # a later migration's
    row = {"embedding": "range(32)", "content_hash": "''"}
    values = {name: row.get(name, "toString(1)" if "Int" not in kind else "1") for name, kind in map(named, columns)}
    kept = {name: value for name, value in values.items() if value != "toString(1)"}
    insert = f"INSERT INTO {name} ({', '.join(kept)}) SELECT {', '.join(kept.values())}"
    return name, f"CREATE TABLE {name} ({', '.join(columns)}) ENGINE = Memory; {insert}"


def named(column: str) -> tuple[str, str]:
    """Name and type of a column's declaration."""
    name, _, kind = column.partition(" ")
    return name, "" if kind.startswith(("Array", "Map")) else kind


def problems(one: dict[str, Any], tables: dict[str, str], known: dict[str, set[str]]) -> Iterator[str]:
    """What this engine has not of a statement."""
    sql = one["sql"].removesuffix("\n FORMAT Native").strip()
    bare = STRING.sub("''", sql)
    for call in () if bare.startswith("INSERT") else CALL.findall(bare):
        names = {call.lower(), COMBINATORS.sub("", call).lower()}
        if not names & (known["functions"] | known["types"] | NO_FUNCTIONS) and call not in tables:
            yield f"no function {call}"
    given = set(one["settings"])
    if " SETTINGS " in bare:
        given |= set(SETTING.findall(bare.partition(" SETTINGS ")[2]))
    for setting in sorted(given - known["settings"] - NO_SETTINGS):
        yield f"no setting {setting}"
    sql = PARAMETER.sub(lambda found: cast(one["parameters"][found[1]], found[2]), sql)
    _, error = run(f"EXPLAIN AST {sql}")
    if error:
        yield f"no syntax: {error[:300]}"
    elif reads(sql):
        made = "; ".join(make for name, make in tables.items() if re.search(rf"\b{name}\b", sql))
        _, error = run("; ".join(filter(None, (made, sql.replace(" FINAL", "")))))
        if error:
            yield f"not executed: {error[:300]}"


def reads(sql: str) -> bool:
    """Whether it is executed: system tables that only a server has are not there, and DESCRIBE is of real tables."""
    return sql.startswith("SELECT") and "system." not in sql


def cast(value: str, kind: str) -> str:
    """A parameter's value as SQL."""
    quoted = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return quoted if kind == "String" else f"CAST({quoted}, '{kind}')"


def main() -> None:
    """Reads the file, writes standard output."""
    given = json.loads(Path(sys.argv[1]).read_text())
    known = {
        "functions": listed("functions") | listed("table_functions"),
        "types": listed("data_type_families"),
        "settings": listed("settings") | listed("merge_tree_settings"),
    }
    tables = dict(map(in_memory, given["tables"]))
    found = [
        f"{problem}: {one['sql'][:300]}" for one in given["statements"] for problem in problems(one, tables, known)
    ]
    json.dump({"read": sum(reads(one["sql"]) for one in given["statements"]), "problems": found}, sys.stdout)


if __name__ == "__main__":
    main()
