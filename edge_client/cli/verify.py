"""`edge-client verify`: every provider of this machine against the CPU, and its speed.

One question is read and answered without and with memories, which the bundle's own writer writes, by the standard graph
on the CPU with full-precision products first. Every provider then reads the same tokens; its logits are compared with
those, and its steps are timed. On a Jetson tegrastats records power meanwhile.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import numpy as np
import typer

from edge_client.cli.doctor import Board
from edge_client.cli.options import out, with_options
from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.providers import PROVIDERS, nvidia
from edge_client.decoder.runtime import session_options
from edge_client.local.writer import MemoryWriter
from edge_client.settings import EdgeSettings
from memory3.codec.payload import ExplicitMemory
from memory3.errors import Memory3Error
from memory3.files.bundle import Bundle
from memory3.runtime.onnx_runtime import ort
from memory3.text.chat import prefix_ids

QUESTION = "What is the capital of Norway, and what is it known for? Answer in a few sentences."
CONTEXT = 1024
FACTS = ("Capital: Oslo", "Population: 5.5 million", "Currency: krone", "Largest lake: Mjosa", "Highest point: 2,469 m")


@dataclass(frozen=True)
class Comparison:
    """One provider, without or with memory. error: of its logits, None if it did not run; problem: why not.

    same_choice: share of steps with the same likeliest token. power_mw: means of tegrastats by rail.
    """

    provider: str
    memory: bool
    error: float | None = None
    same_choice: float | None = None
    tokens_per_s: float | None = None
    threads: int = 0
    power_mw: dict[str, float] | None = None
    problem: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Decoded:
    """tokens of the answer; logits [1 + steps, vocabulary] before each and after the last; seconds of each step."""

    tokens: list[int]
    logits: np.ndarray
    seconds: list[float]


def decode(
    decoder: BatchingDecoder,
    ids: Sequence[int],
    memories: Sequence[ExplicitMemory],
    steps: int,
    answer: Sequence[int] | None = None,
) -> Decoded:
    """Read a prompt and `steps` tokens after it: those of `answer`, or the most probable ones."""
    sequence = decoder.sequence()
    sequence.begin(ids, memory=bool(memories))
    if memories:
        sequence.inject(memories)
    tokens, logits, seconds = [], [sequence.read(ids)[-1].copy()], []
    for step in range(steps):
        tokens.append(int(logits[-1].argmax()) if answer is None else answer[step])
        begun = time.perf_counter()
        logits.append(sequence.read(tokens[-1:])[-1].copy())
        seconds.append(time.perf_counter() - begun)
    sequence.end()
    return Decoded(tokens, np.stack(logits), seconds)


def reference(bundle: Bundle) -> BatchingDecoder:
    """The standard graph on the CPU, its products in the weights' full precision."""
    options = session_options(1, rounded=False)
    session = ort.InferenceSession(str(bundle.decoder), options, providers=["CPUExecutionProvider"])
    prefix = prefix_ids(bundle.tokenizer, bundle.config.memory)
    return BatchingDecoder(DecoderGraph(session), prefix, context=CONTEXT, parallel=1)


def compared(bundle: Bundle, steps: int, model: Path | None = None) -> list[Comparison]:
    """Every provider without and with memory; model: the folder that torch runs, None for the packaged one."""
    ids = bundle.chat.prompt([{"role": "user", "content": QUESTION}]).ids
    decoder = reference(bundle)
    facts = [f"Norway\n{fact}" for fact in FACTS[: bundle.config.memory.memories_per_chunk]]
    written = bundle.memory_format.decode(MemoryWriter(bundle).write(facts).payloads)
    cases: dict[bool, list[ExplicitMemory]] = {False: [], True: written}
    expected = {memory: decode(decoder, ids, memories, steps) for memory, memories in cases.items()}
    del decoder
    rows = []
    for _, provider in sorted(PROVIDERS.items()):
        if reason := provider.missing():
            rows += [Comparison(provider.name, memory, problem=reason, failed=provider.expected()) for memory in cases]
            continue
        try:
            decoder = BatchingDecoder.open(bundle, provider=provider.name, context=CONTEXT, parallel=1, model=model)
            for memory, memories in cases.items():
                rows.append(_compared(decoder, ids, memories, expected[memory]))
        except Memory3Error as error:
            failed = error.reason not in provider.absences
            problem = f"{error.reason}: {error}"
            rows += [Comparison(provider.name, memory, problem=problem, failed=failed) for memory in cases]
    return rows


@contextmanager
def tegrastats() -> Iterator[list[str]]:
    """Run tegrastats during the block, if available; the list has its lines after the block."""
    lines: list[str] = []
    program = shutil.which("tegrastats")
    if program is None:
        yield lines
        return
    with TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen([program, "--interval", "500"], stdout=output)
        try:
            yield lines
        finally:
            process.terminate()
            process.wait()
            output.seek(0)
            lines += output.read().splitlines()


def mean_power(lines: Sequence[str]) -> dict[str, float]:
    """Mean mW of every rail in lines as `… VDD_GPU_SOC 2400mW/2400mW VDD_CPU_CV 800mW/800mW …` (now/average)."""
    rails: dict[str, list[float]] = {}
    for line in lines:
        for name, value in re.findall(r"(\w+) (\d+)mW/\d+mW", line):
            rails.setdefault(name, []).append(float(value))
    return {name: round(statistics.fmean(values), 1) for name, values in rails.items()}


def _compared(
    decoder: BatchingDecoder, ids: Sequence[int], memories: Sequence[ExplicitMemory], right: Decoded
) -> Comparison:
    steps = len(right.tokens)
    decode(decoder, ids, memories, steps, right.tokens)  # warms up
    with tegrastats() as recorded:
        found = decode(decoder, ids, memories, steps, right.tokens)
    provider = decoder.backend.provider
    error = float(np.linalg.norm(found.logits - right.logits) / np.linalg.norm(right.logits))
    return Comparison(
        provider,
        bool(memories),
        error,
        float((found.logits.argmax(-1) == right.logits.argmax(-1)).mean()),
        1 / statistics.median(found.seconds),
        decoder.backend.threads,
        mean_power(recorded) or None,
        failed=not error <= PROVIDERS[provider].tolerance,
    )


def shown(row: Comparison) -> str:
    """One line about a row."""
    what = f"{row.provider:8} {'with' if row.memory else 'without'} memory"
    if row.error is None:
        return f"{'FAIL' if row.failed else 'not run'} {what}: {row.problem}"
    limit = PROVIDERS[row.provider].tolerance
    power_text = ", ".join(f"{name} {mw:.0f} mW" for name, mw in (row.power_mw or {}).items()) or "power not recorded"
    return (
        f"{'FAIL' if row.failed else 'ok'} {what}: error {row.error:.4f} (at most {limit}),"
        f" same token {row.same_choice:.0%}, {row.tokens_per_s:.1f} tokens/s, {row.threads} thread(s), {power_text}"
    )


@with_options("bundle", "model")
def verify(
    given: dict[str, Any],
    file: Annotated[Path, typer.Option("--out", help="JSON of the figures.")] = Path("verify-gpu.json"),
    steps: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 48,
) -> None:
    """Compare every provider's logits, with and without memories, and measure its speed and power.

    They are compared with those of the CPU's slow path, whose products are not rounded: its fast path rounds, too.
    Exits with 1 if a provider is wrong, or if there is a GPU that CUDA does not run on.
    """
    settings = EdgeSettings(**given)
    bundle = Bundle.open(settings.bundle)
    rows = compared(bundle, steps, settings.model)
    for row in rows:
        out.print(shown(row), soft_wrap=True, markup=False)
    result: dict[str, Any] = {
        "scenario": "verify-gpu",
        "gpu": asdict(found) if (found := nvidia.gpu()) else None,
        "board": asdict(board) if (board := Board.here()) else None,
        "onnxruntime": ort.__version__,
        "tensorrt": nvidia.tensorrt_version(),
        "bundle": {"model_id": bundle.manifest.model_id, "precision": bundle.manifest.precision},
        "rows": [asdict(row) for row in rows],
    }
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    ran = sorted({row.provider for row in rows if row.error is not None})
    out.print(f"ran: {', '.join(ran)}; written to {file}", soft_wrap=True)
    if any(row.failed for row in rows):
        raise typer.Exit(1)
