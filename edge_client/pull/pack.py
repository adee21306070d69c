"""Fetches a knowledge base as a memory pack: resumable, every memory checked, one revision, installed whole."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from edge_client.errors import RetrievalError, StorageError
from edge_client.local.knowledge_base import LocalKnowledgeBase, read_head
from edge_client.local.records import Head, Reference
from edge_client.pull.staging import CALL_S, Progress, Staging, messages, resumed, silent
from edge_client.settings import EdgeSettings
from edge_client.wire.channel import ChannelSettings, open_channel
from memory_model.bundle import Bundle
from memory_model.codec.payload import Identity
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from protos.memory.v1 import knowledge_bases_pb2 as bases
from protos.memory.v1 import knowledge_bases_pb2_grpc

PACKS = Path("build/packs")
PACK = "pack.memories"
"""The file of a pack in its folder: a local knowledge base that a service wrote."""
ROW_BYTES = 256
"""Of a memory's numbers, names and places in the file, about."""
STARTS = 4
"""Times that a pull starts anew because the knowledge base was written to, before it gives up."""
_PAUSE_S = 1.0
_Responses = Iterator[bases.ExportKnowledgeBaseResponse]


@dataclass(frozen=True)
class Pulled:
    """A pack that was fetched. memories: in it; fewer than head.memories if it was limited. bytes: of its file."""

    head: Head
    memories: int
    bytes: int


def pull_pack(
    channel: ChannelSettings, knowledge_base: str, place: Path, *, identity: Identity | None = None,
    embedder_id: str = "", limit: int | None = None, progress: Progress = silent, call_s: float = CALL_S,
) -> Pulled:  # fmt: skip
    """Fetch the memories of `knowledge_base` to the folder `place`; an older pack there is replaced in the end.

    identity, embedder_id: of the bundle that will read it; the service refuses another one's. limit: memories at
    most, those of the smallest ids, which are a random choice. call_s: deadline of one stream. Interrupted, the next
    call goes on where it stopped. Raises RetrievalError (DAMAGED_MEMORY for a memory that came damaged), StorageError
    (KNOWLEDGE_BASE_CHANGING where it is written to again and again), InvalidInput for a place that holds something
    else.
    """
    check_pack_place(place)
    request = bases.ExportKnowledgeBaseRequest(name=knowledge_base, embedder_id=embedder_id)
    if identity is not None:
        request.model_id, request.codec_id = identity.model_id, identity.codec_id
        request.memory_format_id = identity.memory_format_id
    with Staging(place) as staging:
        return _PackPull(staging, channel, request, limit, progress, call_s).run()


def check_pack_place(folder: Path) -> None:
    """Raise InvalidInput when a pack may not be put at `folder`: it exists and holds something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        read_head(folder / PACK)
    except (CorruptFile, MissingFile) as error:
        raise InvalidInput(f"{folder} exists and is not a memory pack: choose another place") from error


def open_pack(settings: EdgeSettings, bundle: Bundle) -> LocalKnowledgeBase | None:
    """The pack that the settings name, opened for a bundle, or None where they name none.

    Raises MissingFile, CorruptFile, an IdentityMismatch, and InvalidInput for one of another knowledge base.
    """
    if settings.pack is None:
        return None
    if not (settings.pack / PACK).is_file():
        raise MissingFile(
            f"no memory pack at {settings.pack}: fetch one with `edge-client pull --kb NAME --out {settings.pack}`"
        )
    pack = LocalKnowledgeBase.open(
        settings.pack / PACK, bundle.identity, bundle.manifest.embedder_id, minimum_score=settings.minimum_score,
        remedy="pull the pack again from a service that runs this bundle's model",
    )  # fmt: skip
    if pack.name != settings.knowledge_base:
        raise InvalidInput(
            f"the pack at {settings.pack} is of knowledge base {pack.name!r}, the memories of"
            f" {settings.knowledge_base!r} are requested: name the same with --knowledge-base {pack.name}, or pull the"
            " other pack"
        )
    return pack


class _Changed(Exception):
    """What was collected is of a revision that is no more."""


class _PackPull:
    """One pack, over as many streams as it takes."""

    def __init__(
        self, staging: Staging, channel: ChannelSettings, request: bases.ExportKnowledgeBaseRequest,
        limit: int | None, progress: Progress, call_s: float,
    ) -> None:  # fmt: skip
        self._staging, self._channel, self._call_s = staging, channel, call_s
        self._request, self._limit, self._progress = request, limit, progress
        self._received = 0

    def run(self) -> Pulled:
        with open_channel(self._channel) as opened:
            self._stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(opened)
            for start in range(STARTS):
                try:
                    return resumed(self._continue, lambda: self._received)
                except _Changed:
                    self._staging.clear()
                    time.sleep(_PAUSE_S * start)
        raise StorageError(
            f"knowledge base {self._request.name!r} was written to {STARTS} times while it was being fetched:"
            " run the same command when its ingestion is over",
            reason="KNOWLEDGE_BASE_CHANGING",
        )

    def _continue(self) -> Pulled:
        """One stream, from where the last one stopped; the pack when everything is there."""
        with self._staging.room(), contextlib.ExitStack() as opened:
            base = self._collected()
            if base is None:
                self._staging.clear()
                responses = self._responses(0, None, 0)
                head = self._head(responses)
                base = LocalKnowledgeBase.create(self._staging.folder / PACK, head)
                opened.callback(base.close)
                ids = np.zeros(0, np.uint64)
            else:
                opened.callback(base.close)
                ids = base.memory_ids()
                last_id = int(ids[-1]) if len(ids) else None
                responses = self._responses(len(ids), last_id, base.head.revision)
                head = self._head(responses)
                if head != base.head:
                    raise _Changed
            wanted, count = min(self._limit or head.memories, head.memories), len(ids)
            last_id, digest = int(ids[-1]) if count else None, int(np.bitwise_xor.reduce(ids)) if count else 0
            each = self._whole_bytes // head.memories
            self._staging.require_room((wanted - count) * each)
            self._progress(count * each, wanted * each, head.name)
            while count < wanted and (response := next(responses, None)) is not None:
                page = list(_checked(response.page, head, last_id))[: wanted - count]
                base.append(page)
                for one in page:
                    digest, last_id = digest ^ one.memory_id, one.memory_id
                count += len(page)
                self._received += 1
                self._progress(count * each, wanted * each, head.name)
            if count < wanted:
                message = f"the export ended after {count} of {wanted} memories"
                raise RetrievalError(message, reason="UNREACHABLE", unavailable=True)
            if wanted == head.memories and digest != head.id_digest:
                raise _Changed
            base.merge_journal()
            base.close()
            size = (self._staging.folder / PACK).stat().st_size
            self._staging.install()
            return Pulled(head, count, size)

    def _collected(self) -> LocalKnowledgeBase | None:
        """What an interrupted pull left, if it can be gone on with."""
        try:
            return LocalKnowledgeBase.any(self._staging.folder / PACK)
        except (MissingFile, CorruptFile):
            return None

    def _responses(self, count: int, last_id: int | None, revision: int) -> _Responses:
        """The stream after the first `count` memories."""
        request = bases.ExportKnowledgeBaseRequest(after_id=last_id, revision=revision)
        request.MergeFrom(self._request)
        if self._limit is not None:
            request.limit = max(self._limit - count, 1)  # 0 means all on the wire
        call = self._stub.ExportKnowledgeBase(request, timeout=self._call_s, metadata=self._channel.metadata)
        try:
            yield from messages(call, self._channel.address, self._call_s)
        except RetrievalError as error:
            if error.reason == "KNOWLEDGE_BASE_CHANGED":
                raise _Changed from error
            raise

    def _head(self, responses: _Responses) -> Head:
        first = next(responses, None)
        if first is None or not first.HasField("head"):
            message = f"the service at {self._channel.address} sent an export without its head"
            raise RetrievalError(message, reason="INCOMPATIBLE")
        sent, base = first.head, first.head.knowledge_base
        head = Head(
            base.name, base.model_id, base.codec_id, base.memory_format_id, base.embedder_id, base.dimension,
            sent.rerank_candidates, sent.revision, sent.memory_count, sent.id_digest,
        )  # fmt: skip
        if head.memories == 0:
            raise StorageError(f"knowledge base {head.name!r} has no memories: ingest documents first")
        rows_bytes = head.memories * (4 * head.dimension + ROW_BYTES)
        self._whole_bytes = sent.payload_bytes + sent.text_bytes + rows_bytes
        return head


def _checked(page: bases.ExportPage, head: Head, last_id: int | None) -> Iterator[Reference]:
    """The memories of a page as they are packed; raises RetrievalError (DAMAGED_MEMORY)."""
    for memory in page.memories:
        memory_id, raw, payload = memory.memory_id, memory.vector, memory.payload
        vector = np.frombuffer(raw, "<f4") if len(raw) == 4 * head.dimension else np.zeros(1)
        norm = float(np.linalg.norm(vector.astype(np.float64)))
        in_order = last_id is None or memory_id > last_id
        if not (in_order and np.isfinite(norm) and norm > 0):
            message = f"memory {memory_id:016x} came with a vector or an id that cannot be"
            raise RetrievalError(message, reason="DAMAGED_MEMORY")
        if google_crc32c.value(payload) != memory.payload_crc32c:
            message = f"memory {memory_id:016x} of {memory.document_key!r} came damaged: CRC-32C differs"
            raise RetrievalError(message, reason="DAMAGED_MEMORY")
        last_id = memory_id
        yield Reference(
            memory_id, memory.document_key, memory.title, memory.chunk_number, memory.text,
            (vector / norm).astype("<f4"), payload, memory.payload_crc32c,
        )  # fmt: skip
