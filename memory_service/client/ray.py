"""`memory-service ingest --engine ray`: the stages of `worker_stages` as one streaming pipeline of Ray Data.

    files -> read -> documents -> Prepare -> references -> Write x workers -> memories -> Send -> outcomes

Read is a task for each file, the others are actors, so that tokenizer and model are loaded once. Ray starts a killed
worker again and gives the rows it had to another one; what had been stored by then is unchanged and not doubled.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory_model.errors import Memory3Error, MissingFile
from memory_service.client.travelling import Travelling, rows_of, table_of
from memory_service.client.worker_stages import Destination, ModelOfWorker, Prepare, Send, Write, read

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

ROWS = 32
"""Documents that go from stage to stage together: enough for batches of similar length, little to do again."""
_ADDRESS = "RAY_ADDRESS"
_SHARE = 0.25  # of a processor, for the stages that wait more than they work
_FOR_THE_OTHERS = 3  # processors beside the writers': those shares, and a whole one where Ray cuts blocks
_OBJECTS_BYTES = 1 << 30  # of a cluster of our own: some thousand documents under way


class IngestionStopped(Memory3Error):
    """A stage cannot go on, for all documents alike; what was acknowledged is stored."""


@dataclass(frozen=True)
class Workers:
    """What writes memories: how many, and what each takes of its machine; gpus None: one each where there are any."""

    count: int = 2
    processors: float = 1.0
    gpus: float | None = None


def ingest_with_ray(
    sources: Sequence[Path], destination: Destination, model: ModelOfWorker, workers: Workers
) -> Generator[Travelling]:
    """Ingests files and yields every document with its outcome, in the order in which they are done.

    Works on the cluster that RAY_ADDRESS names, or on one of its own on this machine. Raises MissingFile without
    Ray and IngestionStopped; a model or a service that a worker cannot use stops all.
    """
    ray = _imported()
    _connect(ray, workers)
    try:
        for table in _pipeline(ray, sources, destination, model, workers).iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            yield from rows_of(table)
    except ray.exceptions.RayError as error:
        raise _stopped(error) from error
    finally:
        ray.shutdown()


def _pipeline(
    ray: Any, sources: Sequence[Path], destination: Destination, model: ModelOfWorker, workers: Workers
) -> Dataset:
    files = [{"typed": str(source), "path": str(source.resolve())} for source in sources]
    documents = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
        _read_files, batch_size=1, batch_format="pyarrow", num_cpus=_SHARE
    )
    pool = ray.data.ActorPoolStrategy
    passed_on = {"batch_size": ROWS, "batch_format": "pyarrow"}
    one = {**passed_on, "compute": pool(size=1), "num_cpus": _SHARE}
    prepared = documents.repartition(target_num_rows_per_block=ROWS).map_batches(
        _Stage, fn_constructor_args=(Prepare, destination, model), **one
    )
    gpus = workers.gpus
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
    written = prepared.map_batches(
        _Stage, fn_constructor_args=(Write, destination, model), compute=pool(size=workers.count),
        num_cpus=workers.processors, num_gpus=gpus or None, **passed_on,
    )  # fmt: skip
    sent: Dataset = written.map_batches(_Stage, fn_constructor_args=(Send, destination), **one)
    return sent


def _read_files(files: pyarrow.Table) -> Iterator[pyarrow.Table]:
    rows: list[Travelling] = []
    for file in files.to_pylist():
        for row in read(Path(file["path"]), Path(file["typed"])):
            rows.append(row)
            if len(rows) == ROWS:
                yield table_of(rows)
                rows = []
    if rows:
        yield table_of(rows)


class _Stage:
    """A stage with tables instead of rows."""

    def __init__(self, stage: Callable[..., Any], *arguments: Any) -> None:
        # A worker that cannot be made says so when it is called: Ray would try to make it again and again.
        self._stage: Any = None
        self._problem = ""
        try:
            self._stage = stage(*arguments)
        except Memory3Error as error:
            self._problem = str(error)

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        if self._problem:
            raise IngestionStopped(self._problem)
        try:
            return table_of(self._stage(rows_of(table)))
        except Memory3Error as error:
            raise IngestionStopped(str(error)) from None  # which travels; not every error of ours does


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a service of one's own tells nobody
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingFile("the engine ray needs Ray: pip install 'memory3-service[ray]'") from error
    return ray


def _connect(ray: Any, workers: Workers) -> None:
    """Joins the cluster or starts one; Ray's own lines and bars would stand in the way of ours."""
    if os.environ.get(_ADDRESS):
        ray.init(logging_level=logging.WARNING, log_to_driver=False)
    else:
        # Stages are waiting places, not threads: with fewer processors than stages the pipeline would never begin.
        processors = max(os.cpu_count() or 1, round(workers.count * workers.processors) + _FOR_THE_OTHERS)
        ray.init(
            address="local", num_cpus=processors, object_store_memory=_OBJECTS_BYTES, include_dashboard=False,
            logging_level=logging.WARNING, log_to_driver=False,
        )  # fmt: skip
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _stopped(error: Exception) -> IngestionStopped:
    """The first cause, which Ray wraps several times."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Memory3Error):
        cause = getattr(cause, "cause", None) or cause.__cause__
    return IngestionStopped(str(cause if cause is not None else error))
