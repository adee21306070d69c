"""Precisions of the weights: what a token reads, perplexity and decoding rate of the base, without adapter or memories.

Perplexity is counted as llama.cpp's program does: over the second half of each window, given what precedes in it.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from rich.progress import track

from deploy.bench.answers.decoding import weight_bytes
from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.llama import LlamaCpp, bits_per_weight
from deploy.bench.scenario import BUILD, Keys, Scenario, ScenarioFailed, Settings, Sheet, figure, with_intervals
from edge_client.decoder.providers import open_decoder
from memory3.runtime.backend import DecoderBackend, RunInput
from memory_model.data.factbook import read_jsonl
from memory_model.defaults import PRECISION
from memory_model.export.activations import KEYS, second_moments
from memory_model.export.decoder import export_decoder
from memory_model.export.weights import Precision
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_base
from testing.programs import ROOT

TEXT = ROOT / "data" / "introductions.jsonl"
"""English prose in overlapping paragraphs, of which the first sentences are read, each once."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
PIECE = 64
"""Positions whose logits are held at once."""


class PrecisionSettings(Settings):
    """precisions: labels as `memory-model export` takes them; the first is what the others' rates are relative to.

    tokens: of text, in windows of `window`. decoded: tokens of one round of decoding; 0: no rates are measured.
    calibration: JSONL rows that int4 weights are rounded for, "" for none; default: the model folder's.
    """

    rounds: int = 5
    precisions: tuple[str, ...] = Field(
        default=(
            PRECISION,
            "int4-64-attention-int8-table-int8",
            "int4-64-attention-int8-down-int8-table-int8",
            "int4-32-table-int8",
            "int4-32-attention-int8-table-int8",
            "int8",
        ),
        min_length=1,
    )
    tokens: int = Field(default=4096, ge=64)
    window: int = Field(default=512, ge=32, le=2048)
    decoded: int = Field(default=64, ge=0, le=1024)
    calibration: str | None = None


def measure(settings: PrecisionSettings) -> Keys:
    """One row for each precision, and the base in torch, in the type that its weights are held in."""
    torch.set_num_threads(settings.threads)
    loaded, llama = load_base(ModelFolder.open()), LlamaCpp.find()
    base = loaded.folder.checkpoint.path
    ids, text = _read(loaded, settings)
    own = _torch_losses(loaded, ids)
    calibration = loaded.folder.calibration if settings.calibration is None else settings.calibration
    moments = second_moments(loaded, read_jsonl(ROOT / calibration, KEYS)) if calibration else None
    BUILD.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=BUILD) as folder:
        exporter = _Exporter(loaded, moments, Path(folder), settings.threads)
        rows = [_row(exporter, label, ids, own, settings) for label in settings.precisions]
        (Path(folder) / "text.txt").write_text(text, encoding="utf-8")
        peer = llama and llama.perplexity(Path(folder) / "text.txt", settings.window, len(ids), settings.threads)
    return {
        "model": loaded.folder.name,
        "base": base.name,
        "base_bits_per_weight": round(bits_per_weight(base), 2) if base.suffix == ".gguf" else None,
        "base_perplexity": _perplexity(own),
        "base_products": str(loaded.model.embed_tokens.weight.dtype).removeprefix("torch."),
        "calibrated": moments is not None,
        "llama_cpp_perplexity": peer,
        "rows": rows,
    }


def _read(loaded: LoadedModel, settings: PrecisionSettings) -> tuple[np.ndarray, str]:
    """Token ids int64 [windows, window], and a text that begins with them."""
    lines, text, count = TEXT.read_text("utf-8").splitlines(), "", settings.tokens // settings.window
    bodies = (json.loads(line)["text"].partition("\n")[2] for line in lines)
    parts = list(dict.fromkeys(sentence for body in bodies for sentence in SENTENCE_END.split(body)))
    while len(found := loaded.tokenizer.encode(text)) < count * settings.window:
        if not parts:
            raise ScenarioFailed(f"{TEXT} has {len(found)} tokens: take fewer")
        text += " ".join([*parts[:50], ""])
        del parts[:50]
    return np.asarray(found[: count * settings.window], np.int64).reshape(count, -1), text


@torch.inference_mode()
def _torch_losses(loaded: LoadedModel, ids: np.ndarray) -> np.ndarray:
    """Losses in nats, float64 [windows, scored], of the weights as the base has them."""

    def logits(window: np.ndarray) -> Iterator[np.ndarray]:
        row = torch.from_numpy(window)[None]
        hidden = loaded.model.hidden(row, torch.arange(row.shape[1])[None])[0, len(window) // 2 - 1 : -1]
        for start in range(0, len(hidden), PIECE):
            yield loaded.model.head(hidden[start : start + PIECE]).float().numpy()

    return _losses(ids, logits, "the base")


def _onnx_losses(decoder: DecoderBackend, ids: np.ndarray, label: str) -> np.ndarray:
    """The same of an exported decoder, by the runtime's own kernels."""
    runner = decoder.runner(ids.shape[1], 1)

    def logits(window: np.ndarray) -> Iterator[np.ndarray]:
        runner.clear(0, memory=False)
        first = len(window) // 2 - 1
        runner.run(0, [RunInput(window[:first].tolist(), 0, 0, memory=False)])
        for start in range(first, len(window) - 1, PIECE):
            piece = window[start : min(start + PIECE, len(window) - 1)].tolist()
            yield runner.run(0, [RunInput(piece, start, start, memory=False)], all_logits=True)

    return _losses(ids, logits, label)


def _losses(ids: np.ndarray, logits: Callable[[np.ndarray], Iterator[np.ndarray]], label: str) -> np.ndarray:
    """Of the second half of every window. logits: [positions, vocabulary] of a window, in pieces, in order."""
    found = []
    for window in track(ids, description=label, console=Console(stderr=True), transient=True):
        position, losses = len(window) // 2, []
        for piece in logits(window):
            rows = piece.astype(np.float64)
            rows -= rows.max(axis=1, keepdims=True)
            told = rows[np.arange(len(rows)), window[position : position + len(rows)]]
            losses.append(np.log(np.exp(rows).sum(axis=1)) - told)
            position += len(rows)
        found.append(np.concatenate(losses))
    return np.stack(found)


@dataclass(frozen=True)
class _Exporter:
    """Opens the decoder at a precision, exported once into `folder`."""

    loaded: LoadedModel
    moments: Mapping[str, np.ndarray] | None
    folder: Path
    threads: int

    def path(self, label: str) -> Path:
        """The graph at a precision, exported if it is not there."""
        path = self.folder / label / "decoder.onnx"
        if not path.is_file():
            path.parent.mkdir()
            export_decoder(self.loaded, path, Precision.parse(label), moments=self.moments)
        return path

    def open(self, label: str) -> DecoderBackend:
        """The decoder on the CPU."""
        return open_decoder(self.path(label), provider="cpu", threads=self.threads)


def _row(exporter: _Exporter, label: str, ids: np.ndarray, own: np.ndarray, settings: PrecisionSettings) -> Keys:
    decoder = exporter.open(label)
    losses = _onnx_losses(decoder, ids, label)
    read, config = weight_bytes(exporter.path(label)), decoder.config
    whole = config.parameters() - (0 if config.tied_embeddings else config.vocabulary * config.hidden)
    windows = (losses - own).mean(axis=1)
    keys: Keys = {
        "precision": decoder.precision,
        "bytes_per_token": read,
        "bits_per_weight": round(8 * read / whole, 2),
        "perplexity": _perplexity(losses),
        "increase": round(math.exp(windows.mean()), 4),
        "increase_error": round(float(windows.std(ddof=1)) / math.sqrt(len(windows)), 4) if len(ids) > 1 else None,
    }
    first = settings.precisions[0]
    if not settings.decoded or label == first:
        return {**keys, "intervals": {}}
    decoders = {label: decoder, first: exporter.open(first)}
    variants = {name: _decoding(each, ids, settings.decoded) for name, each in decoders.items()}
    rates = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="decoding")
    return with_intervals(
        keys, tokens_per_s=median_interval(rates[label]), ratio=ratio_interval(rates[label], rates[first])
    )


def _decoding(decoder: DecoderBackend, ids: np.ndarray, count: int) -> Callable[[int], float]:
    """Tokens a second of single steps behind half a window of text."""
    before = ids.shape[1] // 2
    runner = decoder.runner(before + count, 1)

    def once(number: int) -> float:
        text = np.resize(ids[number % len(ids)], before + count).tolist()
        runner.clear(0, memory=False)
        runner.run(0, [RunInput(text[:before], 0, 0, memory=False)])
        began = time.perf_counter()
        for position in range(before, before + count):
            runner.run(0, [RunInput([text[position]], position, position, memory=False)])
        return count / (time.perf_counter() - began)

    return once


def _perplexity(losses: np.ndarray) -> float:
    return round(math.exp(losses.mean()), 3)


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a precision, the base first."""
    peer = result["llama_cpp_perplexity"]
    bits = result["base_bits_per_weight"]
    shown = f"{result['base']}, {result['base_products']}", bits or "–", "–", result["base_perplexity"], "1", "–", "–"
    rows: list[Sequence[str]] = [tuple(map(str, shown))]
    if peer:
        over = f"{peer / result['base_perplexity']:.4f}"
        rows.append((f"{result['base']}, llama.cpp", str(bits), "–", f"{peer:.3f}", over, "–", "–"))
    rows += [
        (
            row["precision"],
            str(row["bits_per_weight"]),
            f"{row['bytes_per_token'] / 1e6:.0f}",
            f"{row['perplexity']:.3f}",
            f"{row['increase']:.4f}" + (f" ± {row['increase_error']:.4f}" if row["increase_error"] else ""),
            figure(row, "tokens_per_s"),
            figure(row, "ratio"),
        )
        for row in result["rows"]
    ]
    columns = ("weights", "bits a weight", "MB a token", "perplexity ↓", "over the base's ↓", "tokens/s ↑", "ratio ↑")
    note = (
        f"Of the base without adapter: {result['settings']['tokens']:,} tokens of English prose in windows of"
        f" {result['settings']['window']}, of which the second half counts. ±: standard error over windows, paired."
        f" Rates are relative to those of {result['rows'][0]['precision']}."
        + (" int4 weights are calibrated." if result["calibrated"] else "")
    )
    return [Sheet(f"{result['model']}, {result['settings']['threads']} thread(s)", columns, rows, note)]


SCENARIO = Scenario(
    name="precision",
    summary="Weights in mixed precision: bytes, perplexity and decoding rate, against the file that the base came in.",
    settings=PrecisionSettings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 1, "warm_up": 0, "tokens": 1024, "decoded": 16, "precisions": (PRECISION, "int8")},
)
