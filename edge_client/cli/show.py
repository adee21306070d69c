"""An answer as tables for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edge_client.events import Recalled, Result
from memory_model.printable import printable


def memories_table(recalls: Sequence[Recalled], *, texts: bool = True) -> RenderableType:
    """The memories that were read, chunk by chunk: document, score, text; and why some were not."""
    table = Table(title="Memories read", title_justify="left", expand=texts)
    table.add_column("chunk", justify="right", no_wrap=True)
    table.add_column("document", overflow="fold")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    if texts:
        table.add_column("text", ratio=1)
    notes = []
    for recalled in recalls:
        label = f"{recalled.chunk}{' (generated)' if recalled.generated else ''}"
        note = ""
        if recalled.recall.error:
            kept = f"; {recalled.kept} memories from before stay" if recalled.kept else ""
            note = f"{recalled.state}: {recalled.recall.error}{kept}"
        elif recalled.recall.service_error:
            note = f"from this device alone, because {recalled.recall.service_error}"
        elif not recalled.recall.read:
            note = "the knowledge base has nothing near it"
        if note:
            notes.append(Text(printable(f"chunk {label}: {note}"), style="yellow"))
        for memory in recalled.recall.read:
            said = f"refused: {memory.refused}" if memory.refused else memory.text or ""
            row = [label, memory.name, f"{memory.score:.3f}", recalled.state, *([said] if texts else [])]
            # Text: a title is no markup
            table.add_row(*(Text(printable(each)) for each in row), style="red" if memory.refused else None)
            label = ""
    return Group(table, *notes) if table.row_count else Group(*notes)


def statistics_table(result: Result) -> RenderableType:
    """What the answer cost: speed, and the milliseconds of each stage for every chunk that recalled."""
    s = result.statistics
    states = ", ".join(f"{n} {state}" for state, n in s.states.items())
    line = (
        f"{s.generated_tokens} tokens at {s.tokens_per_s:.1f} tokens/s, first token after {s.first_token_ms:.0f} ms, "
        f"prompt {s.prompt_tokens} tokens ({s.reused_tokens} reused), decoder {s.decoder_ms:.0f} ms, "
        f"recall {s.recall_ms:.0f} ms{f' ({states})' if states else ''}, the rest {s.overhead_ms:.1f} ms; "
        f"ended by {result.reason}"
    )
    table = Table(box=None, padding=(0, 1, 0, 0), style="dim")
    stages = ("embed", "call", "server", "decompress", "inject", "blocked")
    for column in ("recall", "state", *(f"{stage} ms" for stage in stages)):
        table.add_column(column, justify="right")
    for recalled in result.recalls:
        t = recalled.recall.times
        values = (t.embed_ms, t.call_ms, t.server_ms, t.decompress_ms, t.inject_ms, recalled.blocked_ms)
        table.add_row(str(recalled.chunk), recalled.state, *(f"{v:.1f}" for v in values))
    return Group(Text(line, style="dim"), *([table] if table.row_count else []))


def as_json(result: Result) -> dict[str, Any]:
    """The answer as JSON-ready values; memories by document, without their vectors."""
    s = result.statistics
    return {
        "answer": result.text,
        "reason": result.reason,
        "without_memory": result.without_memory,
        "memories": [
            {
                "chunk": r.chunk, "generated": r.generated, "query": r.recall.query, "state": r.state,
                "error": r.recall.error, "service_error": r.recall.service_error, "kept": r.kept,
                "read": [{**asdict(m), "memory_id": f"{m.memory_id:016x}"} for m in r.recall.read],
                "times": asdict(r.recall.times), "blocked_ms": round(r.blocked_ms, 3),
            }
            for r in result.recalls
        ],
        "statistics": {
            **asdict(s), "recall_ms": s.recall_ms, "blocked_ms_per_chunk": s.blocked_ms_per_chunk,
        },
    }  # fmt: skip
