"""What a conversation costs as it grows: time to the first token, tokens a second, memory, and what writing takes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.table import Table

from edge_client.events import Token
from edge_client.model import EdgeModel
from edge_client.session import ChatSession
from experiments.conversations.told_early import Sources, Talk, grow
from memory_model.bundle import DEFAULT_FOLDER
from memory_model.cli.options import FACTBOOK, console

REQUEST = "Tell me a long story about the sea."
TOKENS, LONG = 96, 512
"""Of a story, and of one during which turns leave."""
_BEGUN = 8  # tokens that are not timed


@dataclass(frozen=True)
class Cost:
    """At so many tokens of conversation. resident_mb: of the process; stored_mb: of the conversation's memories.

    while_remembering: tokens a second while turns leave, over those before in the same answer; 0 where none left.
    pause_ms: the longest time between two tokens of that answer.
    """

    tokens: int
    first_token_ms: float
    tokens_per_s: float
    while_remembering: float
    pause_ms: float
    resident_mb: float
    stored_mb: float


def conversation_times(
    bundle: Annotated[Path, typer.Option(help="An edge bundle with writer.onnx.")] = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="JSON lines.")] = Path("build/conversation_times.jsonl"),
    distances: Annotated[str, typer.Option(help="Tokens of the conversation.")] = "1000,4000,16000,64000",
    threads: Annotated[int, typer.Option(min=1, help="Of the decoder; writing has one more.")] = 1,
) -> None:
    """Measures one conversation as it grows, on a machine that does nothing else."""
    far = sorted(map(int, distances.split(",")))
    table = Table("tokens", "first token, ms", "tokens/s", "while remembering", "longest pause, ms", "MB", "stored, MB")
    with (
        EdgeModel.open(bundle, offline=True, threads=threads, local=Path("build/none")) as model, out.open("w") as file
    ):  # fmt: skip
        talk = Sources(FACTBOOK.parent, test=False).talk(0, [*far, far[-1] + 4000], model.bundle.tokenizer.count)
        session = model.session()
        for distance in far:
            grow(session, talk, distance)
            cost = _cost(model, session, talk, distance)
            file.write(json.dumps(asdict(cost)) + "\n")
            table.add_row(*(f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in asdict(cost).values()))
    console.print(table)


def _cost(model: EdgeModel, session: ChatSession, talk: Talk, tokens: int) -> Cost:
    endless, talked = dict.fromkeys(model.bundle.tokenizer.stop_ids, -100.0), session.conversation
    asked = []
    for _ in range(4):  # the first waits for what grew
        asked.append(session.send(REQUEST, max_tokens=TOKENS, logit_bias=endless).result().statistics)
        session.take_back()
    full, held = model.mark - 3 * model.bundle.config.memory.chunk_tokens, talked.messages
    while len(model.bundle.chat.prompt(held[talked.left :]).ids) < full:
        held += talk.messages[len(held) : len(held) + 2]
    times, leaving = list[float](), list[int]()
    for event in session.send(REQUEST, max_tokens=LONG, logit_bias=endless):
        if isinstance(event, Token):
            leaving += [len(times)] if talked._eviction is not None else []
            times.append(time.perf_counter())
    session.take_back()
    share = 0.0
    if len(leaving) > 1:
        first, last = leaving[0], leaving[-1]
        before = (first - _BEGUN) / (times[first] - times[_BEGUN])
        share = (last - first) / (times[last] - times[first]) / before
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    stored = talked.past.base.path.parent.iterdir() if talked.past else ()
    return Cost(
        tokens, median(a.first_token_ms for a in asked[1:]), median(a.tokens_per_s for a in asked[1:]), share,
        1e3 * max(b - a for a, b in pairwise(times)), resident / 1e6, sum(p.stat().st_size for p in stored) / 1e6,
    )  # fmt: skip
