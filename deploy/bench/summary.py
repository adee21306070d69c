"""One table of all models in the report: a column for each model and processor, a row for each figure.

A figure that was not measured again keeps its cell of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.bench.scenario import figure

HEAD = "### All models"
NONE = "–"
_FIRST = "figure"
_COMMIT = "commit"


@dataclass(frozen=True)
class Row:
    """A figure: how the table names it, the scenario that measures it, and its text in a result."""

    label: str
    scenario: str
    cell: Callable[[Mapping[str, Any]], str]


def _key(name: str, *within: str) -> Callable[[Mapping[str, Any]], str]:
    """The figure of this name, in the part of the result that `within` leads to."""

    def cell(result: Mapping[str, Any]) -> str:
        part: Any = result
        for step in within:
            part = part.get(step) or {}
        return figure(part, name)

    return cell


def _bits(result: Mapping[str, Any]) -> str:
    llama = result.get("llama_cpp") or {}
    return f"{result['bits_per_weight']:.4g}; {llama.get('bits_per_weight', NONE)}"


def _of_link(result: Mapping[str, Any]) -> str:
    links = [row for row in result["rows"] if (row["rtt_ms"], row["bandwidth_mbit"]) == (50, 100)]
    return figure(links[0], "ratio_overlap") if links else NONE


ROWS = (
    Row("decoding, tokens/s ↑", "decode", _key("tokens_per_s_without")),
    Row("with memories over without ↑", "decode", _key("ratio")),
    Row("of the speed of a copy of memory ↑", "decode", _key("bandwidth_fraction")),
    Row("bits a weight: ours; llama.cpp's", "decode", _bits),
    Row("decoding over llama.cpp, one thread ↑", "decode", _key("ratio_vs_llama_cpp")),
    Row("decoding over llama.cpp, all threads ↑", "decode", _key("ratio_vs_llama_cpp_all_threads")),
    Row("prefill over llama.cpp, one thread ↑", "decode", _key("ratio_prefill_vs_llama_cpp")),
    Row("prefill over llama.cpp, all threads ↑", "decode", _key("ratio_prefill_vs_llama_cpp_all_threads")),
    Row("drafts from memories over none ↑", "decode", _key("speculation")),
    Row("over text RAG, once a query ↑", "rag", _key("ratio")),
    Row("over text RAG, every chunk ↑", "rag", _key("ratio_every_chunk")),
    Row("over text RAG by llama.cpp ↑", "rag", _key("ratio_vs_llama_cpp")),
    Row("with memories, 50 ms and 100 Mbit/s ↑", "network", _of_link),
    Row("conversations at once over llama.cpp ↑", "local-server", _key("ratio_vs_llama_cpp")),
    Row("decompression of five memories, ms ↓", "codec", _key("decode_ms", "default_model")),
    Row("ingestion over the forward pass ↑", "ingest", _key("ratio")),
    Row("references/s written on the device ↑", "remember", _key("references_per_s")),
    Row("resident memory, MB ↓", "memory", _key("resident_mb")),
)


def as_table(measured: Mapping[str, Sequence[Mapping[str, Any]]], page: str = "") -> list[str]:
    """Heading and table of the results by scenario; nothing where there is neither a result nor a table in `page`."""
    columns = {name: dict(cells) for name, cells in _read(page).items()}
    commits: dict[str, set[str]] = {}
    renewed: dict[str, set[str]] = {}
    for row in ROWS:
        for result in measured.get(row.scenario, ()):
            name = _column(result)
            columns.setdefault(name, {})[row.label] = row.cell(result)
            renewed.setdefault(name, set()).add(row.label)
            commits.setdefault(name, set()).add(str(result["machine"]["commit"]))
    for name, found in commits.items():
        before = columns[name].get(_COMMIT, "") if columns[name].keys() - renewed[name] - {_COMMIT} else ""
        columns[name][_COMMIT] = ", ".join(sorted({*found, *filter(None, before.split(", "))}))
    if not columns:
        return []
    labels = [row.label for row in ROWS if any(row.label in cells for cells in columns.values())]
    names = sorted(columns)
    lines = [_line([_FIRST, *names]), _line(["---"] * (1 + len(names)))]
    lines += [_line([label, *(columns[name].get(label, NONE) for name in names)]) for label in [*labels, _COMMIT]]
    return [HEAD, "\n".join(lines)]


def _column(result: Mapping[str, Any]) -> str:
    return f"{result.get('measured_model', result.get('model', ''))}, {result['machine']['cpu']}"


def _read(page: str) -> dict[str, dict[str, str]]:
    """The cells of the table in a page, by column and row."""
    _, found, rest = page.partition(HEAD)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in rest.splitlines() if line[:1] == "|"]
    if not found or len(rows) < 3:
        return {}
    head, _, *body = rows
    return {
        name: {row[0]: row[column] for row in body if row[column] != NONE}
        for column, name in enumerate(head[1:], start=1)
    }


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
