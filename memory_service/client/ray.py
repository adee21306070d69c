"""`memory-service ingest --engine ray`: workers of a Ray cluster read, prepare, write and send documents.

    files -> read -> documents -> Prepare -> references -> Write -> memories -> Send, or Store -> outcomes

Read is a task for each file, the others are actors, so that tokenizer and model are loaded once; there are as many of
each as there are workers. Ray starts a killed worker again and gives the rows it had to another one: a stage that runs
again does no harm, since documents that are stored already are unchanged.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memory_model.errors import InvalidInput, Memory3Error, MissingFile
from memory_service.client.ingest import Ingestion
from memory_service.client.rows import Destination, Row, read_rows
from memory_service.errors import DocumentEmpty, EncodingFailed, ServiceError, described
from memory_service.ops.logs import logger
from memory_service.settings import Settings
from memory_service.stores import Written, open_store
from memory_service.stores.address import parse_address
from memory_service.stores.identity import WriterIdentity, require_same
from memory_service.write.document import Document, checked
from memory_service.write.encoder import Encoder, ModelEncoder, Splitter
from protos.memory.v1 import ingestion_pb2 as pb

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

ROWS = 32
"""Documents that go from stage to stage together: enough for batches of similar length, little to do again."""
STORED_ROWS = 4096
"""Documents that a worker stores at once where it writes to the store itself."""
_ADDRESS = "RAY_ADDRESS"
_SHARE = 0.25  # of a processor, for the stages that wait more than they work
_FOR_THE_OTHERS = 3  # processors beside the writers': those shares, and a whole one where Ray cuts blocks
_OBJECTS_BYTES = 1 << 30  # of a cluster of our own: some thousand documents under way
_STORE_ATTEMPTS = 6
_REMEDY = "give the workers the service's model, codec and bundle"


class IngestionStopped(Memory3Error):
    """A stage cannot go on, for all documents alike; what was acknowledged is stored."""


@dataclass(frozen=True)
class Workers:
    """What writes memories: how many, and what each takes of its machine; gpus None: one each where there are any."""

    count: int = 2
    processors: float = 1.0
    gpus: float | None = None


class ModelOfWorker(Protocol):
    """How a worker comes to the model. Travels to the workers, so it is small and can be pickled."""

    def splitter(self, reference_tokens: int) -> Callable[[str, str, int], list[str]]:
        """Cuts texts as Encoder.split does."""

    def encoder(self) -> Encoder:
        """Loads the model: once in each worker that writes."""


@dataclass(frozen=True)
class ModelOfSettings:
    """The model that settings name. Paths are absolute and lead to the same files on every worker."""

    values: dict[str, Any]

    def splitter(self, reference_tokens: int) -> Callable[[str, str, int], list[str]]:
        """See ModelOfWorker."""
        return Splitter.load(Settings(**self.values), reference_tokens)

    def encoder(self) -> Encoder:
        """See ModelOfWorker."""
        return ModelEncoder(Settings(**self.values))


# Stages, as the workers run them: each takes rows and gives as many back


class Prepare:
    """Leaves out what is stored, cuts the rest into references."""

    def __init__(self, to: Destination, model: ModelOfWorker) -> None:
        self._to = to
        self._split = model.splitter(to.describe().reference_tokens)

    def __call__(self, rows: Sequence[Row]) -> list[Row]:
        """One batch."""
        return [self._prepared(row) for row in self._to.without_unchanged(rows)]

    def _prepared(self, row: Row) -> Row:
        if row.item is None:
            return row
        text = row.item.document
        try:
            overlap = self._to.overlap_tokens
            references = self._split(text.text, text.title, overlap) if text.text.strip() else []
            if not references:
                raise DocumentEmpty("the document has no text", field="text")
        except Memory3Error as error:
            return _refused(row, error)
        prepared = pb.PreparedDocument(
            key=text.key, title=text.title, metadata=text.metadata, content_hash=self._to.content_hash(text),
            references=[pb.PreparedReference(text=part) for part in references],
        )  # fmt: skip
        return replace(row, item=pb.IngestItem(prepared=prepared))


class Write:
    """Embeds and writes. Loads the model, and refuses to work for a service that runs another one."""

    def __init__(self, to: Destination, model: ModelOfWorker) -> None:
        """Raises an IdentityMismatch."""
        self._encoder = model.encoder()
        theirs = to.describe()
        identity = WriterIdentity(
            theirs.model_id, theirs.codec_id, theirs.memory_format_id, theirs.embedder_id, theirs.dimension
        )
        require_same(identity, self._encoder.description.identity, _REMEDY)

    def __call__(self, rows: Sequence[Row]) -> list[Row]:
        """One batch, its references together; where that fails, document by document."""
        try:
            references = [
                part for row in rows if row.item is not None for part in row.item.prepared.references
            ]
            if references:
                made = self._encoder.encode([reference.text for reference in references])
                made = checked(made, len(references), self._encoder.description.identity.dimension)
                for reference, vector, payload in zip(references, made.vectors, made.payloads, strict=True):
                    reference.embedding = vector.astype("<f4").tobytes()
                    reference.payload = payload
        except Exception as error:
            if len(rows) > 1:
                return [done for row in rows for done in self([row])]
            return [_refused(rows[0], error)]
        return list(rows)


class Send:
    """Sends to the service's stream, which checks, stores and acknowledges."""

    def __init__(self, to: Destination) -> None:
        self._to = replace(to, memory_writing=pb.MEMORY_WRITING_NOW)

    def __call__(self, rows: Sequence[Row]) -> list[Row]:
        """One batch, one stream; raises RemoteError."""
        return list(Ingestion(self._to, leave_out_unchanged=False).run(rows))


class Store:
    """Writes to the store's server itself, thousands of documents at once; neither quotas nor the audit log apply."""

    def __init__(self, to: Destination, settings: dict[str, Any]) -> None:
        """settings: the store's (MEMORY_SERVICE_STORE…). Raises StoreUnavailable, KnowledgeBaseNotFound."""
        made = Settings(**settings)
        self._store = open_store(made.store, made.store_options())
        self._base = self._store.knowledge_base(to.knowledge_base)
        theirs = to.describe()
        require_same(
            self._base.identity,
            WriterIdentity(
                theirs.model_id,
                theirs.codec_id,
                theirs.memory_format_id,
                theirs.embedder_id,
                theirs.dimension,
            ),
            "name the store of this service",
        )

    def __call__(self, rows: Sequence[Row]) -> list[Row]:
        """One part; of a key that occurs twice the last one stays."""
        done: dict[int, Row] = {}
        left = {number: row for number, row in enumerate(rows) if row.item is not None}
        while left:
            first: dict[str, int] = {}
            for number, row in left.items():
                first.setdefault(row.key, number)
            documents = [_document(left[number].item) for number in first.values()]
            written = {one.key: one for one in self._write(documents)}
            for key, number in first.items():
                one = written[key]
                outcome = "unchanged" if one.unchanged else "replaced" if one.replaced else "stored"
                done[number] = left.pop(number).done(outcome, one.reference_count)
        return [done.get(number, row) for number, row in enumerate(rows)]

    def _write(self, documents: Sequence[Document]) -> list[Written]:
        for attempt in range(1, _STORE_ATTEMPTS + 1):
            try:
                return self._store.write(self._base, [document.finished() for document in documents])
            except ServiceError as error:
                if not error.retryable or attempt == _STORE_ATTEMPTS:
                    raise
                time.sleep(0.5 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


def _document(item: pb.IngestItem | None) -> Document:
    assert item is not None, "done rows are not stored"
    prepared = item.prepared
    document = Document(0, prepared.key, prepared.title, dict(prepared.metadata), prepared.content_hash)
    document.take([reference.text for reference in prepared.references])
    for chunk, reference in enumerate(prepared.references):
        document.fill(chunk, np.frombuffer(reference.embedding, "<f4"), reference.payload)
    return document


def _refused(row: Row, error: Exception) -> Row:
    if not isinstance(error, Memory3Error):
        logger().error("encoding_failed", document_key=row.key, exc_info=error)
        error = EncodingFailed(
            "the model could not turn this document into memories; the worker's log has the cause"
        )
    _, reason, message, _ = described(error)
    return row.failed(reason, message)


# Rows as tables, which Ray passes on


def table_of(rows: Sequence[Row]) -> pyarrow.Table:
    """Rows as a table; numpy would take zero bytes off the end of binary values."""
    import pyarrow as pa

    kinds = {"str": pa.large_string(), "int": pa.int64()}
    columns = {field.name: kinds.get(str(field.type), pa.large_binary()) for field in fields(Row)}
    values = [
        {**vars(row), "item": None if row.item is None else row.item.SerializeToString()} for row in rows
    ]
    return pa.Table.from_pylist(values, schema=pa.schema(columns))


def rows_of(table: pyarrow.Table) -> list[Row]:
    """The rows of a table."""
    return [
        Row(**{**row, "item": None if row["item"] is None else pb.IngestItem.FromString(row["item"])})
        for row in table.to_pylist()
    ]


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


def _read_files(files: pyarrow.Table) -> Iterator[pyarrow.Table]:
    rows: list[Row] = []
    for file in files.to_pylist():
        for row in read_rows(Path(file["path"]), Path(file["typed"])):
            rows.append(row)
            if len(rows) == ROWS:
                yield table_of(rows)
                rows = []
    if rows:
        yield table_of(rows)


# The pipeline


def ingest_with_ray(
    sources: Sequence[Path], to: Destination, model: ModelOfWorker, workers: Workers,
    store: dict[str, Any] | None = None,
) -> Generator[Row]:  # fmt: skip
    """Ingests files and yields every document with its outcome, in the order in which they are done.

    store: settings of the store that the workers write to themselves, a server's; without, they send to the service.
    Works on the cluster that RAY_ADDRESS names, or on one of its own on this machine. Raises MissingFile without
    Ray, InvalidInput, and IngestionStopped; a model or a service that a worker cannot use stops all.
    """
    if store is not None and not parse_address(store["store"]).host:
        raise InvalidInput(
            "workers write to clickhouse:// and myscale:// themselves, to other stores by the service"
        )
    ray = _imported()
    _connect(ray, workers)
    try:
        for table in _pipeline(ray, sources, to, model, workers, store).iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            yield from rows_of(table)
    except ray.exceptions.RayError as error:
        raise _stopped(error) from error
    finally:
        ray.shutdown()


def _pipeline(
    ray: Any, sources: Sequence[Path], to: Destination, model: ModelOfWorker, workers: Workers,
    store: dict[str, Any] | None,
) -> Dataset:  # fmt: skip
    files = [{"typed": str(source), "path": str(source.resolve())} for source in sources]
    documents = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
        _read_files, batch_size=1, batch_format="pyarrow", num_cpus=_SHARE
    )
    pool = ray.data.ActorPoolStrategy
    passed_on = {"batch_size": ROWS, "batch_format": "pyarrow"}
    waiting = {**passed_on, "compute": pool(min_size=1, max_size=workers.count), "num_cpus": _SHARE}
    prepared = documents.repartition(target_num_rows_per_block=ROWS).map_batches(
        _Stage, fn_constructor_args=(Prepare, to, model), **waiting
    )
    gpus = workers.gpus
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
    written = prepared.map_batches(
        _Stage, fn_constructor_args=(Write, to, model), compute=pool(size=workers.count),
        num_cpus=workers.processors, num_gpus=gpus or None, **passed_on,
    )  # fmt: skip
    if store is not None:
        large = {**waiting, "batch_size": STORED_ROWS}
        stored: Dataset = written.map_batches(_Stage, fn_constructor_args=(Store, to, store), **large)
        return stored
    sent: Dataset = written.map_batches(_Stage, fn_constructor_args=(Send, to), **waiting)
    return sent


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
        share = workers.processors + 2 * _SHARE
        processors = max(os.cpu_count() or 1, round(workers.count * share) + _FOR_THE_OTHERS)
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
