"""What a conversation costs as it grows: time to the first token, tokens a second, memory, and what writing takes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.table import Table

from edge_client.model import EdgeModel
from edge_client.session import ChatSession
from edge_client.stream import Token
from experiments.conversations.told_early import Sources, Talk, grow
from memory_model.bundle import DEFAULT_FOLDER
from memory_model.cli.options import FACTBOOK, console

REQUEST = "Tell me a long story about the sea."
TOKENS, LONG = 96, 512
"""Of a story, and of one during which turns leave."""


@dataclass(frozen=True)
class Cost:
    """At so many tokens of conversation. resident_mb: of the process; stored_mb: of the conversation's memories.

    while_remembering: the time of the tokens during which turns leave, up to the one after it, in an answer of which
    none leaves, over that in an answer of which they do; 0 where none left. pause_ms, usual_pause_ms: the longest time
    between two of these tokens in the one, and in the other.
    """

    tokens: int
    first_token_ms: float
    tokens_per_s: float
    while_remembering: float
    pause_ms: float
    usual_pause_ms: float
    resident_mb: float
    stored_mb: float


def conversation_times(
    bundle: Annotated[Path, typer.Option(help="Bundle with writer.onnx.")] = DEFAULT_FOLDER,
    out: Annotated[Path, typer.Option(help="JSON lines to write.")] = Path("build/conversation_times.jsonl"),
    distances: Annotated[str, typer.Option(help="Tokens of the conversation.")] = "1000,4000,16000,64000",
    threads: Annotated[int, typer.Option(min=1, help="Decoder threads; writing has one more.")] = 1,
) -> None:
    """Measure speed and memory of a conversation as it grows, on an idle machine."""
    far = sorted(map(int, distances.split(",")))
    table = Table(
        "tokens", "first token, ms", "tokens/s", "while remembering", "longest pause, ms", "usual", "MB", "stored, MB"
    )  # fmt: skip
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
    mark, held = model.mark, talked.messages
    while len(model.bundle.chat.prompt(held[talked.left :]).ids) < mark - 3 * model.bundle.config.memory.chunk_tokens:
        held += talk.messages[len(held) : len(held) + 2]
    session.send(REQUEST, max_tokens=1).result()
    session.take_back()
    model.background.submit(lambda: None).result()  # the pause in which somebody types: turns are written ahead

    def times() -> tuple[list[float], list[int]]:
        """When every token of a long answer came, and the numbers of those during which turns leave."""
        came, leaving = list[float](), list[int]()
        for event in session.send(REQUEST, max_tokens=LONG, logit_bias=endless):
            if isinstance(event, Token):
                leaving += [len(came)] if talked._eviction is not None else []
                came.append(time.perf_counter())
        session.take_back()
        return came, leaving

    model.mark = model.decoder.context  # none leaves
    usual, _ = times()
    model.mark = mark
    came, leaving = times()
    share, pauses = 0.0, (0.0, 0.0)
    if leaving:
        first, last = max(leaving[0] - 1, 0), min(leaving[-1] + 2, len(came))
        alone, beside = usual[first:last], came[first:last]
        share = (alone[-1] - alone[0]) / (beside[-1] - beside[0])
        pauses = _longest_ms(beside), _longest_ms(alone)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    stored = talked.past.base.path.parent.iterdir() if talked.past else ()
    return Cost(
        tokens, median(a.first_token_ms for a in asked[1:]), median(a.tokens_per_s for a in asked[1:]), share,
        *pauses, resident / 1e6, sum(p.stat().st_size for p in stored) / 1e6,
    )  # fmt: skip


def _longest_ms(times: Sequence[float]) -> float:
    return 1e3 * max(b - a for a, b in pairwise(times))
