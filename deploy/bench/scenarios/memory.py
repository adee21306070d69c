"""Memory of a device: what its process holds by the length of a conversation, and how much of it is mapped files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from deploy.bench.answers.answering import answer
from deploy.bench.scenario import Keys, Scenario, Settings, Sheet, figure
from edge_client import EdgeModel
from memory3.files.bundle import Bundle
from memory3.runtime.backend import RunInput
from memory3.runtime.cache_layout import cache_layout

USUAL = 8192
"""The context of the figures that stand at the top of the result."""
QUESTION = "Which rivers flow through this country?"
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")


class MemorySettings(Settings):
    """contexts: tokens of the conversation in the caches; those that the model was not trained for are left out."""

    contexts: tuple[int, ...] = Field(default=(2048, 8192, 32768), min_length=1)


@dataclass(frozen=True)
class Held:
    """Resident memory of a process in MB. private_mb: its own; weights_mapped_mb: pages of the decoder's weights file.

    The rest are other files, such as libraries, which processes share.
    """

    resident_mb: float
    private_mb: float
    weights_mapped_mb: float

    @classmethod
    def here(cls, weights: str) -> Held:
        """Of this process, by the kernel's count of its mappings. weights: the name of their file."""
        sums, name = {"Rss": 0, "Private": 0, "weights": 0}, ""
        for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
            if found := _MAPPING.match(line):
                name = found[1]
                continue
            kind, _, rest = line.partition(":")
            if kind == "Rss":
                sums["Rss"] += int(rest.split()[0])
                sums["weights"] += int(rest.split()[0]) if name.endswith(f"/{weights}") else 0
            elif kind in ("Private_Clean", "Private_Dirty") and not name.startswith("/"):
                sums["Private"] += int(rest.split()[0])
        return cls(*(round(kilobytes * 1024 / 1e6, 1) for kilobytes in sums.values()))


def measure(settings: MemorySettings) -> Keys:
    """Each context in a process of its own, once: it does not vary from run to run."""
    bundle = Bundle.open(settings.bundle)
    trained = bundle.config.positions
    contexts = [tokens for tokens in settings.contexts if not trained or tokens <= trained]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = [pool.submit(_row, settings, tokens).result() for tokens in contexts]
    usual = min(rows, key=lambda row: abs(row["context"] - USUAL))
    return {
        "model": bundle.manifest.name,
        "precision": bundle.manifest.precision,
        "threads": settings.threads,
        "provider": "cpu",
        "trained_tokens": trained,
        "rows": rows,
        **{name: usual[name] for name in ("context", "resident_mb", "private_mb", "weights_mapped_mb", "caches_mb")},
    }


def _row(settings: MemorySettings, tokens: int) -> Keys:
    """After an answer, then with the keys and values of `tokens` tokens in caches and one step behind them."""
    weights = Bundle.open(settings.bundle).decoder.with_suffix(".onnx.data")
    options: dict[str, Any] = {"offline": True, "threads": settings.threads, "provider": "cpu", "parallel": 1}
    with tempfile.TemporaryDirectory() as local, EdgeModel.open(settings.bundle, local=local, **options) as model:
        answer(model, QUESTION, "off", 8)
        opened = Held.here(weights.name)
        backend, config = model.engine.decoder.backend, model.bundle.config
        runner = backend.runner(tokens, 1)
        rows: dict[str, np.ndarray] = {}
        for tensor in cache_layout(config).tensors:
            ones = np.broadcast_to(np.float32(1), (len(tensor.heads), tokens - 1, config.head_dim))
            rows |= {tensor.keys: ones, tensor.values: ones}
        runner.clear(0, memory=True)
        runner.write_text(0, True, rows)
        runner.run(0, [RunInput([0], tokens - 1, tokens - 1, memory=True)])
        full = Held.here(weights.name)
    return {
        "context": tokens,
        **asdict(full),
        "opened_mb": opened.resident_mb,
        "caches_mb": round(full.private_mb - opened.private_mb, 1),
        "weights_file_mb": round(weights.stat().st_size / 1e6, 1),
    }


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a context."""
    names = ("resident_mb", "private_mb", "caches_mb", "weights_mapped_mb", "weights_file_mb")
    rows = [(f"{row['context']:,}", *(figure(row, name) for name in names)) for row in result["rows"]]
    columns = ("tokens", "resident ↓", "its own ↓", "for the tokens ↓", "weights mapped", "weights on disk")
    trained = f" The model was trained for {result['trained_tokens']:,} tokens." if result["trained_tokens"] else ""
    note = (
        "MB of a process with the SDK, one conversation and the embedder, after an answer and with that many tokens in"
        " the caches. Its own: not of a file; the runtime's packed copy of the weights is among it. The rest are"
        " libraries, which processes share." + trained
    )
    return [Sheet(f"{result['model']}, {result['precision']} weights, cpu provider", columns, rows, note)]


SCENARIO = Scenario(
    name="memory",
    summary="Resident memory of a device's process by the length of its conversation.",
    settings=MemorySettings,
    measure=measure,
    sheets=sheets,
    quick={"contexts": (2048,)},
)
