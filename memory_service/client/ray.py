"""`memory-service ingest --engine ray`: workers of a Ray cluster read, write and send documents.

    files -> read -> documents -> Write -> memories -> Send, or Store -> outcomes

Read is a task for each file, the others are actors, so that the model is loaded once; there are as many of each as
there are workers. Ray starts a killed worker again and gives what it had to another one: a stage that runs again
does no harm, since documents that are stored already are unchanged.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memory3.errors import InvalidInput, Memory3Error, MissingFile
from memory3.formats import read_documents
from memory_service.client.ingest import Destination, Ingestion, Upload
from memory_service.encoder import Encoder, checked
from memory_service.errors import DocumentEmpty, ServiceError, described
from memory_service.settings import Settings
from memory_service.stores.address import parse_address
from memory_service.stores.opening import open_store
from memory_service.stores.store import NewDocument, Written, require_same
from memory_service.write.document import PendingDocument, check_head
from memory_service.write.pipeline import encoding_error
from protos.memory.v1 import ingestion_pb2 as pb

if TYPE_CHECKING:
    import pyarrow

ROWS = 32
"""Documents that go from stage to stage together: enough for batches of similar length, little to do again."""
STORED_ROWS = 4096
"""Documents that a worker stores at once where it writes to the store itself."""
_ADDRESS = "RAY_ADDRESS"
_SHARE = 0.25  # of a processor, for the stages that wait more than they work
_FOR_THE_OTHERS = 3  # processors in addition to the writers': those shares, and a whole one where Ray cuts blocks
_OBJECTS_BYTES = 1 << 30  # of a cluster of our own: some thousand documents under way
_STORE_ATTEMPTS = 6


class IngestionStopped(Memory3Error):
    """A stage cannot go on, for all documents alike; what was acknowledged is stored."""


# Stages, as the workers run them: each takes uploads and gives as many back


class Write:
    """Leaves out what is stored; splits, embeds and writes the rest."""

    def __init__(self, to: Destination, load: Callable[[], Encoder]) -> None:
        """Loads the model; raises an IdentityMismatch where the service runs another one."""
        self._to = to
        self._encoder = load()
        ours = self._encoder.description.identity
        require_same(to.identity(), ours, "give the workers the service's model, codec and bundle")

    def __call__(self, uploads: Sequence[Upload]) -> list[Upload]:
        """One batch, its references together; where that fails, document by document."""
        return self._written([self._prepared(upload) for upload in self._to.without_unchanged(uploads)])

    def _prepared(self, upload: Upload) -> Upload:
        if upload.item is None:
            return upload
        text = upload.item.document
        try:
            check_head(text.key, text.title, text.metadata)
            overlap = self._to.overlap_tokens
            texts = self._encoder.split(text.text, text.title, overlap) if text.text.strip() else []
            if not texts:
                raise DocumentEmpty("the document has no text", field="text")
        except Memory3Error as error:
            return _refused(upload, error)
        prepared = pb.PreparedDocument(
            key=text.key,
            title=text.title,
            metadata=text.metadata,
            content_hash=self._to.content_hash(text),
            references=[pb.PreparedReference(text=part) for part in texts],
        )
        return replace(upload, item=pb.IngestItem(prepared=prepared))

    def _written(self, uploads: list[Upload]) -> list[Upload]:
        try:
            references = [part for upload in uploads if upload.item for part in upload.item.prepared.references]
            if references:
                made = self._encoder.encode([reference.text for reference in references])
                made = checked(made, len(references), self._encoder.description.identity.dimension)
                for reference, vector, payload in zip(references, made.vectors, made.payloads, strict=True):
                    reference.embedding = vector.astype("<f4").tobytes()
                    reference.payload = payload
        except Exception as error:
            if len(uploads) > 1:
                return [done for upload in uploads for done in self._written([upload])]
            return [_refused(uploads[0], encoding_error(error, uploads[0].key))]
        return uploads


class Send:
    """Sends to the service's stream, which checks, stores and acknowledges."""

    def __init__(self, to: Destination) -> None:
        self._to = replace(to, memory_writing=pb.MEMORY_WRITING_NOW)

    def __call__(self, uploads: Sequence[Upload]) -> list[Upload]:
        """One batch, one stream; raises RemoteError."""
        return list(Ingestion(self._to).run(uploads))


class Store:
    """Writes to the store's server itself, thousands of documents at once; quotas do not apply."""

    def __init__(self, to: Destination, settings: Settings) -> None:
        """settings: the store's (MEMORY_SERVICE_STORE…). Raises StoreUnavailable, KnowledgeBaseNotFound."""
        self._store = open_store(settings.store, settings.store_options())
        self._base = self._store.knowledge_base(to.knowledge_base)
        require_same(self._base.identity, to.identity(), "name the store of this service")

    def __call__(self, uploads: Sequence[Upload]) -> list[Upload]:
        """One part; of a key that occurs twice the last one is stored."""
        documents = {upload.key: _new_document(upload) for upload in uploads if upload.item is not None}
        written = {one.key: one for one in self._write(list(documents.values()))}

        def done(upload: Upload) -> Upload:
            if upload.item is None:
                return upload
            one = written[upload.key]
            outcome = "unchanged" if one.unchanged else "replaced" if one.replaced else "stored"
            return upload.done(outcome, one.reference_count)

        return [done(upload) for upload in uploads]

    def _write(self, documents: Sequence[NewDocument]) -> list[Written]:
        for attempt in itertools.count(1):
            try:
                return self._store.write(self._base, documents) if documents else []
            except ServiceError as error:
                if not error.retryable or attempt == _STORE_ATTEMPTS:
                    raise
                time.sleep(0.5 * 2**attempt)
        raise AssertionError


def _new_document(upload: Upload) -> NewDocument:
    assert upload.item is not None, "done uploads are not stored"
    prepared = upload.item.prepared
    document = PendingDocument(prepared.key, prepared.title, dict(prepared.metadata), prepared.content_hash)
    document.take([reference.text for reference in prepared.references])
    for chunk, reference in enumerate(prepared.references):
        document.fill(chunk, np.frombuffer(reference.embedding, "<f4"), reference.payload)
    return document.finished()


def _refused(upload: Upload, error: Memory3Error) -> Upload:
    _, reason, message, _ = described(error)
    return upload.failed(reason, message)


def table_of(uploads: Sequence[Upload]) -> pyarrow.Table:
    """Uploads as rows of a table, which is what Ray passes on."""
    import pyarrow as pa

    return pa.table({"upload": pa.array([pickle.dumps(upload) for upload in uploads], pa.large_binary())})


def uploads_of(table: pyarrow.Table) -> list[Upload]:
    """The uploads of a table."""
    return [pickle.loads(upload) for upload in table["upload"].to_pylist()]


class _Stage:
    """A stage with tables instead of uploads."""

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
            return table_of(self._stage(uploads_of(table)))
        except Memory3Error as error:
            raise IngestionStopped(str(error)) from None  # which travels; not every error of ours does


def _read_files(files: pyarrow.Table) -> Iterator[pyarrow.Table]:
    for file in files.to_pylist():
        uploads = []
        for document in read_documents(Path(file["path"]), Path(file["key"])):
            uploads.append(Upload.of(document))
            if len(uploads) == ROWS:
                yield table_of(uploads)
                uploads = []
        if uploads:
            yield table_of(uploads)


# The pipeline


def ingest_with_ray(
    sources: Mapping[str, Path],
    to: Destination,
    load: Callable[[], Encoder],
    *,
    workers: int = 2,
    processors: float = 1.0,
    gpus: float | None = None,
    store: Settings | None = None,
) -> Generator[Upload]:
    """Ingests files and yields every document with its outcome, in the order in which they are done.

    sources: files by the key of each. load: loads the model in a worker; can be pickled. processors, gpus: of each
    worker; gpus None: one where there are any. store: settings of the store that the workers write to themselves, a
    server's; without, they send to the service. Works on the cluster that RAY_ADDRESS names, or on one of its own on
    this machine. Raises MissingFile without Ray, InvalidInput, and IngestionStopped; a model or a service that a worker
    cannot use stops all.
    """
    if store is not None and not parse_address(store.store).host:
        raise InvalidInput("workers write to clickhouse:// and myscale:// themselves, to other stores by the service")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingFile("the engine ray needs Ray: pip install 'memory3-service[ray]'") from error
    # With fewer processors than stages the pipeline would never start.
    least = round(workers * (processors + _SHARE)) + _FOR_THE_OTHERS
    own = (
        {}
        if os.environ.get(_ADDRESS)
        else {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, least),
            "object_store_memory": _OBJECTS_BYTES,
            "include_dashboard": False,
        }
    )
    ray.init(logging_level=logging.WARNING, log_to_driver=False, **own)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
    try:
        pool = ray.data.ActorPoolStrategy
        files = [{"key": key, "path": str(source.resolve())} for key, source in sources.items()]
        documents = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
            _read_files, batch_size=1, batch_format="pyarrow", num_cpus=_SHARE
        )
        written = documents.repartition(target_num_rows_per_block=ROWS).map_batches(
            _Stage,
            fn_constructor_args=(Write, to, load),
            compute=pool(size=workers),
            batch_size=ROWS,
            batch_format="pyarrow",
            num_cpus=processors,
            num_gpus=gpus or None,
        )
        last: tuple[Any, ...] = (Send, to) if store is None else (Store, to, store)
        done = written.map_batches(
            _Stage,
            fn_constructor_args=last,
            compute=pool(min_size=1, max_size=workers),
            batch_size=ROWS if store is None else STORED_ROWS,
            batch_format="pyarrow",
            num_cpus=_SHARE,
        )
        for table in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from uploads_of(table)
    except ray.exceptions.RayError as error:
        raise _stopped(error) from error
    finally:
        ray.shutdown()


def _stopped(error: Exception) -> IngestionStopped:
    """The first cause, which Ray wraps several times."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Memory3Error):
        cause = getattr(cause, "cause", None) or cause.__cause__
    return IngestionStopped(str(cause if cause is not None else error))
