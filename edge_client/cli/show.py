"""What an answer looks like in a terminal, and as JSON. Knows events, not how they come about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edge_client.events import Finished, Recalled
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
        if recalled.recall.error:
            kept = f"; {recalled.kept} memories from before stay" if recalled.kept else ""
            notes.append(
                Text(f"chunk {label}: {recalled.state}: {recalled.recall.error}{kept}", style="yellow")
            )
        elif recalled.recall.service_error:
            notes.append(
                Text(
                    f"chunk {label}: from the pack on this device, because {recalled.recall.service_error}",
                    style="yellow",
                )
            )
        elif not recalled.recall.read:
            notes.append(Text(f"chunk {label}: the knowledge base has nothing near it", style="yellow"))
        for memory in recalled.recall.read:
            row: list[RenderableType] = [
                label,
                Text(printable(memory.name)),
                f"{memory.score:.3f}",
                recalled.state,
            ]  # Text: a title is no markup
            text = Text(printable(memory.text or ""))
            if memory.refused:
                text = Text(printable(f"refused: {memory.refused}"), style="red")
            table.add_row(*row, *([text] if texts else []), style="dim" if memory.refused else None)
            label = ""
    return Group(table, *notes) if table.row_count else Group(*notes)


def statistics_table(finished: Finished, recalls: Sequence[Recalled]) -> RenderableType:
    """What the answer cost: speed, and the milliseconds of each stage for every chunk that recalled."""
    s = finished.statistics
    states = ", ".join(f"{n} {state}" for state, n in s.states.items())
    line = (
        f"{s.generated_tokens} tokens at {s.tokens_per_s:.1f} tokens/s, first token after {s.first_token_ms:.0f} ms, "
        f"prompt {s.prompt_tokens} tokens ({s.reused_tokens} reused), decoder {s.decoder_ms:.0f} ms, "
        f"recall {s.recall_ms:.0f} ms{f' ({states})' if states else ''}, the rest {s.overhead_ms:.1f} ms; "
        f"ended by {finished.reason}"
    )
    if not recalls:
        return Text(line, style="dim")
    table = Table(box=None, padding=(0, 1, 0, 0), style="dim")
    columns = (
        "recall",
        "state",
        "embed ms",
        "call ms",
        "server ms",
        "decompress ms",
        "inject ms",
        "blocked ms",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for recalled in recalls:
        t = recalled.recall.times
        values = (t.embed_ms, t.call_ms, t.server_ms, t.decompress_ms, t.inject_ms, recalled.blocked.total_ms)
        table.add_row(str(recalled.chunk), recalled.state, *(f"{v:.1f}" for v in values))
    return Group(Text(line, style="dim"), table)


def as_json(finished: Finished, recalls: Sequence[Recalled]) -> dict[str, Any]:
    """The answer as JSON-ready values; memories by document, without their vectors."""
    return {
        "answer": finished.text,
        "reason": finished.reason,
        "without_memory": finished.without_memory,
        "memories": [
            {
                "chunk": r.chunk,
                "generated": r.generated,
                "query": r.recall.query,
                "state": r.state,
                "error": r.recall.error,
                "service_error": r.recall.service_error,
                "kept": r.kept,
                "read": [{**asdict(m), "memory_id": f"{m.memory_id:016x}"} for m in r.recall.read],
                "times": asdict(r.recall.times),
                "blocked": asdict(r.blocked),
            }
            for r in recalls
        ],
        "statistics": {
            **{k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(finished.statistics).items()},
            "recall_ms": round(finished.statistics.recall_ms, 3),
            "blocked_ms_per_chunk": round(finished.statistics.blocked_ms_per_chunk, 3),
        },
    }
