"""Ingestion against its limit: references a second through the service, and through the model's forward pass alone."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from deploy.bench.intervals import median_interval, ratio_interval
from deploy.bench.rounds import interleave
from deploy.bench.scenario import (
    BUILD,
    Keys,
    Scenario,
    ScenarioFailed,
    Settings,
    Sheet,
    figure,
    with_intervals,
)
from deploy.bench.service.ingesting import Text, ingest, portions, serve_model
from deploy.bench.side_process import side_process


class IngestSettings(Settings):
    """references: about so many a round. threads: of the model, in the services and alone. engines: of the stores.

    The figures without a store's name are those of the first one.
    """

    references: int = Field(default=150, ge=1, le=1000)
    engines: tuple[Literal["chdb", "file"], ...] = Field(default=("chdb", "file"), min_length=1)


def measure(settings: IngestSettings) -> Keys:
    """Each round takes other documents; services and forward pass get the same ones, in turn."""
    import torch

    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import load_model
    from memory_model.nn.writing import MemoryWriter

    torch.set_num_threads(settings.threads)
    loaded = load_model(ModelFolder.open(None))
    writer = MemoryWriter(loaded.model, loaded.tokenizer)
    tokens = loaded.config.memory.reference_tokens
    rounds = settings.rounds + settings.warm_up
    given = [
        portion
        for portion, _ in zip(
            portions(loaded.tokenizer.count, tokens, settings.references), range(rounds), strict=False
        )
    ]
    if len(given) < rounds:
        raise ScenarioFailed(
            f"the documents are enough for {len(given)} rounds of {settings.references} references: take fewer"
        )
    BUILD.mkdir(parents=True, exist_ok=True)

    def through(address: str, number: int) -> float:
        portion = given[number + settings.warm_up]
        return _count(portion) / ingest(address, portion)

    def model_alone(number: int) -> float:
        texts = [reference for text in given[number + settings.warm_up] for reference in text.references]
        began = time.perf_counter()
        writer.write(texts)
        return len(texts) / (time.perf_counter() - began)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=BUILD))).resolve()
        variants: dict[str, Callable[[int], float]] = {"model": model_alone}
        for engine in settings.engines:
            url = f"{engine}://{folder / engine}"
            address = stack.enter_context(side_process(serve_model, url, settings.bundle, settings.threads))
            variants[engine] = functools.partial(through, address)
        writer.write(given[0][0].references[:1])  # a service has done so before it serves
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="ingesting")
    limit = samples.pop("model")
    keys: Keys = {
        "engine": settings.engines[0],
        "threads": settings.threads,
        "references": sum(map(_count, given[settings.warm_up :])),
        "batch_tokens": writer.batch_tokens,
        "stores": {
            engine: with_intervals(
                {}, references_per_s=median_interval(rates), ratio=ratio_interval(rates, limit)
            )
            for engine, rates in samples.items()
        },
    }
    first = samples[settings.engines[0]]
    return with_intervals(
        keys,
        references_per_s=median_interval(first),
        model_bound_references_per_s=median_interval(limit),
        ratio=ratio_interval(first, limit),
    )


def _count(texts: list[Text]) -> int:
    return sum(len(text.references) for text in texts)


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store."""
    limit = figure(result, "model_bound_references_per_s")
    rows = [
        (f"{engine}://", figure(keys, "references_per_s"), limit, figure(keys, "ratio"))
        for engine, keys in result["stores"].items()
    ]
    columns = ("store", "references/s", "forward pass alone", "ratio")
    title = f"ingestion, {result['references']} references, {result['threads']} threads"
    note = (
        "From the first document sent to the last acknowledgement of a durable, searchable memory; beside it the same"
        " references through the model's batched forward pass alone, which no ingestion can exceed."
    )
    return [Sheet(title, columns, rows, note)]


SCENARIO = Scenario(
    name="ingest",
    summary="Documents into memories through a real service, against the model's own batched forward pass.",
    settings=IngestSettings,
    measure=measure,
    promised=("references_per_s", "model_bound_references_per_s", "ratio"),
    sheets=sheets,
)
