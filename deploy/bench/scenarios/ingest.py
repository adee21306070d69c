"""Ingestion against its limit: references a second through the service, and through the model's forward pass alone."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import grpc
import torch
from pydantic import Field

from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.knowledge import FACTBOOK
from deploy.bench.scenario import (
    BUILD,
    Keys,
    Scenario,
    ScenarioFailed,
    Settings,
    Sheet,
    directions,
    figure,
    with_intervals,
)
from deploy.processes import ServiceProcess
from memory_model.formats import FileDocument
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_model
from memory_model.nn.writing import MemoryWriter
from memory_model.references import split
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc


class IngestSettings(Settings):
    """references: about so many a round. threads: of the model, in the services and alone. engines: of the stores.

    The figures without a store's name are those of the first one.
    """

    rounds: int = 5
    threads: int = Field(default=2, ge=1, le=256)
    references: int = Field(default=150, ge=1, le=1000)
    engines: tuple[Literal["chdb", "file"], ...] = Field(default=("chdb", "file"), min_length=1)


def measure(settings: IngestSettings) -> Keys:
    """Each round takes other documents; services and forward pass get the same ones, in turn."""
    torch.set_num_threads(settings.threads)
    loaded = load_model(ModelFolder.open(None))
    writer = MemoryWriter(loaded.model, loaded.tokenizer)
    tokens, rounds = loaded.config.memory.reference_tokens, settings.rounds + settings.warm_up
    given = list(islice(portions(loaded.tokenizer.count, tokens, settings.references), rounds))
    if len(given) < rounds:
        raise ScenarioFailed(
            f"the documents are enough for {len(given)} rounds of {settings.references} references: take fewer"
        )
    BUILD.mkdir(parents=True, exist_ok=True)

    def through(address: str, number: int) -> float:
        return given[number].count / ingest(address, given[number])

    def model_alone(number: int) -> float:
        began = time.perf_counter()
        writer.write(given[number].references)
        return given[number].count / (time.perf_counter() - began)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=BUILD))).resolve()
        variants: dict[str, Callable[[int], float]] = {"model": model_alone}
        for engine in settings.engines:
            place = folder / engine
            place.mkdir()
            service = ServiceProcess.start(
                place, settings.bundle, store=f"{engine}://{place / 'store'}",
                environment={"OMP_NUM_THREADS": str(settings.threads)},
            )  # fmt: skip
            variants[engine] = functools.partial(through, stack.enter_context(service).address)
        writer.write(given[0].references[:1])  # a service has done so before it serves
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="ingesting")
    limit = samples.pop("model")
    stores = {
        engine: with_intervals({}, references_per_s=median_interval(rates), ratio=ratio_interval(rates, limit))
        for engine, rates in samples.items()
    }
    first = samples[settings.engines[0]]
    return with_intervals(
        {"engine": settings.engines[0], "threads": settings.threads, "stores": stores},
        references_per_s=median_interval(first),
        model_bound_references_per_s=median_interval(limit),
        ratio=ratio_interval(first, limit),
    )


@dataclass
class Portion:
    """Documents of a round and the references that they are split into."""

    documents: list[FileDocument] = field(default_factory=list)
    references: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Of the references."""
        return len(self.references)


def portions(count: Callable[[str], int], tokens: int, references: int) -> Iterator[Portion]:
    """Documents of the factbook with about as many references, portion after portion, none twice.

    count: tokens of a text. tokens: of a reference, at most.
    """
    portion = Portion()
    for line in FACTBOOK.read_text("utf-8").splitlines():
        document = json.loads(line)
        key, title, text = document["key"], document["title"], document["text"]
        portion.documents.append(FileDocument(key, key, title, text))
        portion.references += split(text, title, count, tokens)
        if portion.count >= references:
            yield portion
            portion = Portion()


def ingest(address: str, portion: Portion) -> float:
    """Seconds from the first document sent to the last acknowledgement; raises ScenarioFailed if one is refused."""
    requests = [pb.IngestRequest(start=pb.IngestStart(knowledge_base="bench", create_if_missing=True))]
    for number, one in enumerate(portion.documents, 1):
        document = pb.Document(key=one.key, title=one.title, text=one.text)
        requests.append(pb.IngestRequest(item=pb.IngestItem(sequence=number, document=document)))
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(60)
        began = time.perf_counter()
        answers = list(ingestion_pb2_grpc.IngestionStub(channel).Ingest(iter(requests), timeout=3600))
        took = time.perf_counter() - began
    acknowledged = sum(answer.WhichOneof("message") == "acknowledged" for answer in answers)
    if acknowledged != len(portion.documents):
        raise ScenarioFailed(f"{acknowledged} of {len(portion.documents)} documents were acknowledged")
    return took


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store."""
    limit = figure(result, "model_bound_references_per_s")
    rows = [
        (f"{engine}://", figure(keys, "references_per_s"), limit, figure(keys, "ratio"))
        for engine, keys in result["stores"].items()
    ]
    columns = ("store", "references/s", "forward pass alone", "ratio")
    note = "From the first document sent to the last acknowledgement of a durable, searchable memory."
    return [Sheet(f"ingestion, {result['threads']} threads", columns, rows, note)]


SCENARIO = Scenario(
    name="ingest",
    summary="Documents into memories through a real service, against the model's own batched forward pass.",
    settings=IngestSettings,
    measure=measure,
    promised=("references_per_s", "model_bound_references_per_s", "ratio"),
    directions=directions(more="references_per_s ratio", none="model_bound_references_per_s"),
    sheets=sheets,
    quick={"rounds": 1, "warm_up": 0},
)
