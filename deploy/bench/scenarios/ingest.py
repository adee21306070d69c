"""Ingestion against its limit: references a second through the service, and through the model's forward pass alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """references: about so many a round. threads: of the model, in the service and alone. engine: of the store."""

    references: int = Field(default=64, ge=1, le=1000)
    engine: str = Field(default="chdb", pattern="^(chdb|file)$")


def measure(settings: IngestSettings) -> Keys:
    """Each round takes other documents; service and forward pass get the same ones, in turn."""
    import torch

    from memory_service.encoder import ModelEncoder
    from memory_service.settings import Settings as ServiceSettings

    torch.set_num_threads(settings.threads)
    values: dict[str, Any] = {"bundle": settings.bundle}
    service_settings = ServiceSettings(**values)
    encoder = ModelEncoder(service_settings)
    rounds = settings.rounds + settings.warm_up
    given = [
        portion for portion, _ in zip(portions(encoder, settings.references), range(rounds), strict=False)
    ]
    if len(given) < rounds:
        raise ScenarioFailed(
            f"the documents are enough for {len(given)} rounds of {settings.references} references: take fewer"
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        url = f"{settings.engine}://{Path(folder).resolve() / 'store'}"
        with side_process(serve_model, url, settings.bundle, settings.threads) as address:

            def through_the_service(number: int) -> float:
                portion = given[number + settings.warm_up]
                return _count(portion) / ingest(address, portion)

            def model_alone(number: int) -> float:
                texts = [
                    reference for text in given[number + settings.warm_up] for reference in text.references
                ]
                began = time.perf_counter()
                encoder.write_memories(texts)
                return len(texts) / (time.perf_counter() - began)

            variants = {"service": through_the_service, "model": model_alone}
            samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="ingesting")
    keys: Keys = {
        "engine": settings.engine,
        "threads": settings.threads,
        "references": sum(map(_count, given[settings.warm_up :])),
        "batch_tokens": encoder.batch_tokens,
    }
    return with_intervals(
        keys,
        references_per_s=median_interval(samples["service"]),
        model_bound_references_per_s=median_interval(samples["model"]),
        ratio=ratio_interval(samples["service"], samples["model"]),
    )


def _count(texts: list[Text]) -> int:
    return sum(len(text.references) for text in texts)


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row."""
    names = ("references_per_s", "model_bound_references_per_s", "ratio")
    columns = ("store", "references/s", "forward pass alone", "ratio")
    title = f"ingestion, {result['references']} references, {result['threads']} threads"
    note = (
        "From the first document sent to the last acknowledgement of a durable, searchable memory; beside it the same"
        " references through the model's batched forward pass alone, which no ingestion can exceed."
    )
    return [Sheet(title, columns, [(f"{result['engine']}://", *(figure(result, n) for n in names))], note)]


SCENARIO = Scenario(
    name="ingest",
    summary="Documents into memories through a real service, against the model's own batched forward pass.",
    settings=IngestSettings,
    measure=measure,
    promised=("references_per_s", "model_bound_references_per_s", "ratio"),
    sheets=sheets,
)
