"""Ingestion against its limit: references a second through the service, and through the model's forward pass alone."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import torch
from pydantic import Field

from deploy.bench.answers.knowledge import Portion, fewer_of_large, portions
from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.processes import side_process
from deploy.bench.scenario import BUILD, Keys, Scenario, ScenarioFailed, Settings, Sheet, figure, with_intervals
from deploy.bench.service.data import Collection
from deploy.bench.service.stores import serve_store
from memory3.files.bundle import Bundle
from memory_model.models.load import load_model
from memory_model.nn.writing import MemoryWriter
from memory_service.client.ingest import Destination, Ingestion, Upload
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE
from protos.memory.v1 import ingestion_pb2 as pb
from testing.clickhouse import PASSWORD, clickhouse_server
from testing.processes import ServiceProcess

_POD_DIMENSION, _POD_PAYLOAD_BYTES = 384, 19_968
"""Of SmolLM2-135M, whatever the model: the store is the limit."""
_LARGE, _SMALL = 16, 10
"""Documents of each kind while waits are measured."""


class IngestSettings(Settings):
    """references: about so many a round; None: 150 of a model of 135M parameters, of others by their size.

    threads: of the model, in the services and alone. engines: of the stores, one after the other. The figures without a
    store's name are those of the first one. pod_references: a round of the pods; 0: they are not measured. waits:
    measure how long a small document waits behind sixteen of a fourth of `references`.
    """

    rounds: int = 5
    threads: int = Field(default=2, ge=1, le=256)
    references: int | None = Field(default=None, ge=1, le=1000)
    engines: tuple[Literal["chdb", "file"], ...] = Field(default=("chdb", "file"), min_length=1)
    pod_references: int = Field(default=2048, ge=0)
    waits: bool = True


def measure(settings: IngestSettings) -> Keys:
    """Each round takes other documents; a service and the forward pass get the same ones, in turn.

    One service at a time: a large model is then held twice, not three times.
    """
    torch.set_num_threads(settings.threads)
    name = Bundle.open(settings.bundle).manifest.name
    loaded = load_model(name, writes_only=True)
    writer = MemoryWriter(loaded.model, loaded.tokenizer)
    references = settings.references or fewer_of_large(150, loaded.config)
    tokens, rounds = loaded.config.memory.reference_tokens, settings.rounds + settings.warm_up
    given = list(islice(portions(loaded.tokenizer.count, tokens, references), rounds))
    if len(given) < rounds:
        raise ScenarioFailed(f"documents for {len(given)} rounds of {references} references: take fewer")
    BUILD.mkdir(parents=True, exist_ok=True)
    writer.write(given[0].references[:1])  # a service has done so before it serves

    def through(address: str, number: int) -> float:
        return given[number].count / ingest(address, map(Upload.of, given[number].documents))

    def model_alone(number: int) -> float:
        began = time.perf_counter()
        writer.write(given[number].references)
        return given[number].count / (time.perf_counter() - began)

    stores: dict[str, Keys] = {}
    for engine in settings.engines:
        with tempfile.TemporaryDirectory(dir=BUILD) as made:
            folder = Path(made).resolve()
            store, environment = f"{engine}://{folder / 'store'}", {"OMP_NUM_THREADS": str(settings.threads)}
            with ServiceProcess.start(folder, settings.bundle, store=store, environment=environment) as service:
                own = functools.partial(through, service.address)
                variants: dict[str, Callable[[int], float]] = {"model": model_alone, engine: own}
                samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="ingesting")
        stores[engine] = with_intervals(
            {},
            references_per_s=median_interval(samples[engine]),
            model_bound_references_per_s=median_interval(samples["model"]),
            ratio=ratio_interval(samples[engine], samples["model"]),
        )
    return {
        "model": name,
        "engine": settings.engines[0],
        "threads": settings.threads,
        "references": references,
        "stores": stores,
        "waits": measured_waits(settings, given[0]) if settings.waits else None,
        "pods": measured_pods(settings) if settings.pod_references else None,
        **stores[settings.engines[0]],
    }


def measured_waits(settings: IngestSettings, portion: Portion) -> Keys:
    """Seconds until a small document is acknowledged: alone, and while sixteen calls write a large one each."""
    texts, each = portion.references, max(portion.count // 4, 1)
    large = " ".join(texts[:each])

    def write(address: str, key: str, text: str) -> float:
        return ingest(address, [Upload(key, pb.IngestItem(document=pb.Document(key=key, text=text)))])

    with tempfile.TemporaryDirectory(dir=BUILD) as made:
        folder = Path(made).resolve()
        environment = {"OMP_NUM_THREADS": str(settings.threads)}
        store = f"file://{folder / 'store'}"
        with ServiceProcess.start(folder, settings.bundle, store=store, environment=environment) as service:
            small = functools.partial(write, service.address)
            alone = [small(f"alone {n}", texts[n % len(texts)]) for n in range(_SMALL)]
            with ThreadPoolExecutor(_LARGE) as callers:
                writing = [callers.submit(small, f"large {n}", f"{n} {large}") for n in range(_LARGE)]
                time.sleep(2 * max(alone))  # until the first of them is being written
                behind = [small(f"behind {n}", f"Behind. {texts[n % len(texts)]}") for n in range(_SMALL)]
                if sum(not one.done() for one in writing) < _LARGE // 2:
                    raise ScenarioFailed("the large documents were done too soon: take more references")
                for one in writing:
                    one.result()
    return with_intervals(
        {"large_references": each, "longest_s": max(behind)},
        alone_s=median_interval(alone),
        behind_s=median_interval(behind),
    )


def measured_pods(settings: IngestSettings) -> Keys:
    """References a second that one and two services write to one server store, in turn, where no model is the limit.

    Clients send references with vectors and payloads made before, as workers do that have models of their own. The
    server is the tests': chdb, the real engine, behind ClickHouse's HTTP interface.
    """
    rounds, half = settings.rounds + settings.warm_up, (settings.pod_references + 1) // 2
    uploads = prepared(Collection(4 * half * rounds, _POD_DIMENSION, payload_bytes=_POD_PAYLOAD_BYTES), half)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=BUILD)))
        port = stack.enter_context(clickhouse_server(folder))
        url = f"clickhouse://default:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/memories"
        pods = [stack.enter_context(side_process(serve_store, url, _POD_DIMENSION)) for _ in range(2)]
        callers = stack.enter_context(ThreadPoolExecutor(2))

        def through(addresses: Sequence[str], _: int) -> float:
            return 2 * half / max(callers.map(ingest, addresses, [next(uploads), next(uploads)]))

        variants = {"one": functools.partial(through, pods[:1] * 2), "two": functools.partial(through, pods)}
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="pods")
    return with_intervals(
        {"references": 2 * half},
        one=median_interval(samples["one"]),
        two=median_interval(samples["two"]),
        ratio=ratio_interval(samples["two"], samples["one"]),
    )


def prepared(collection: Collection, count: int) -> Iterator[list[Upload]]:
    """Documents with `count` references in all, eight each but perhaps the last one; then others."""
    references = enumerate(vector for _, vectors in collection.vector_blocks() for vector in vectors)
    while taken := list(islice(references, count)):
        uploads = []
        for start in range(0, len(taken), 8):
            document = pb.PreparedDocument(key=f"d{taken[start][0]}")
            for number, vector in taken[start : start + 8]:
                text, payload = collection.text(number), collection.payload(number)
                document.references.add(text=text, embedding=vector.tobytes(), payload=payload)
            uploads.append(Upload(document.key, pb.IngestItem(prepared=document)))
        yield uploads


def ingest(address: str, uploads: Iterable[Upload]) -> float:
    """Seconds from the first document sent to the last acknowledgement; raises ScenarioFailed if one is refused."""
    began = time.perf_counter()
    for upload in Ingestion(Destination(address, DEFAULT_KNOWLEDGE_BASE)).run(iter(uploads)):
        if upload.outcome != "stored":
            raise ScenarioFailed(f"document {upload.key} is {upload.outcome}: {upload.message}")
    return time.perf_counter() - began


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store."""
    names = ("references_per_s", "model_bound_references_per_s", "ratio")
    rows = [(f"{engine}://", *(figure(keys, name) for name in names)) for engine, keys in result["stores"].items()]
    columns = ("store", "references/s ↑", "forward pass alone ↑", "ratio ↑")
    note = "From the first document sent to the last acknowledgement of a durable, searchable memory."
    found = [Sheet(f"ingestion, {result['model']}, {result['threads']} threads", columns, rows, note)]
    if waits := result.get("waits"):
        cells = (figure(waits, "alone_s"), figure(waits, "behind_s"), figure(waits, "longest_s"))
        title = f"A small document behind {_LARGE} of {waits['large_references']} references each"
        found.append(Sheet(title, ("alone, s ↓", "behind them, s ↓", "longest, s ↓"), [cells]))
    if pods := result["pods"]:
        written = (("one", figure(pods, "one"), "1"), ("two", figure(pods, "two"), figure(pods, "ratio")))
        title = f"Pods on one server store, memories of {_POD_PAYLOAD_BYTES:,} bytes sent by clients"
        found.append(Sheet(title, ("pods", "references/s ↑", "ratio ↑"), written))
    return found


SCENARIO = Scenario(
    name="ingest",
    summary="Ingestion of documents through a real service, against the model's own batched forward pass.",
    settings=IngestSettings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 1, "warm_up": 0, "pod_references": 256, "waits": False},
)
