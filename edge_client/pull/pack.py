"""Fetches a knowledge base as a memory pack: resumable, every memory checked, one revision, installed whole.

A pack is a local knowledge base that a service wrote. It stands in for the service where that does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from edge_client.errors import RetrievalError, StorageError
from edge_client.local.folder import path_of, remove
from edge_client.local.knowledge_base import LocalKnowledgeBase, read_head
from edge_client.local.records import Head, Reference
from edge_client.pull.bundle import CALL_S, Progress, Staging, messages, resumed, silent
from edge_client.wire.channel import ChannelSettings, open_channel
from memory_model.codec.payload import Identity
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from protos.memory.v1 import knowledge_bases_pb2 as bases
from protos.memory.v1 import knowledge_bases_pb2_grpc

ROW_BYTES = 256
"""Of a memory's numbers, names and places in the file, about."""
STARTS = 4
"""Times that a pull starts anew because the knowledge base was written to, before it gives up."""
_PAUSE_S = 1.0
_Responses = Iterator[bases.ExportKnowledgeBaseResponse]


@dataclass(frozen=True)
class Pulled:
    """A pack that was fetched to `path`."""

    path: Path
    head: Head


def pull_pack(
    channel: ChannelSettings, knowledge_base: str, folder: Path, *, identity: Identity | None = None,
    embedder_id: str = "", progress: Progress = silent, call_s: float = CALL_S,
) -> Pulled:  # fmt: skip
    """Fetch the memories of `knowledge_base` to the folder of local knowledge bases, in place of an older pack of it.

    identity, embedder_id: of the bundle that will read it; the service refuses another one's. call_s: deadline of one
    stream. Interrupted, the next call goes on where it stopped. Raises RetrievalError (DAMAGED_MEMORY for a memory that
    came damaged), StorageError (KNOWLEDGE_BASE_CHANGING where it is written to again and again), InvalidInput where
    the device has a knowledge base of its own by that name.
    """
    path = path_of(folder, knowledge_base)
    if path.exists() and not read_head(path).pulled:
        raise InvalidInput(f"{path} holds this device's own memories: choose another folder with --local")
    request = bases.ExportKnowledgeBaseRequest(name=knowledge_base, embedder_id=embedder_id)
    if identity is not None:
        request.model_id, request.codec_id = identity.model_id, identity.codec_id
        request.memory_format_id = identity.memory_format_id
    with Staging(path) as staging:
        return _PackPull(staging, channel, request, progress, call_s).run()


class _Changed(Exception):
    """What was collected is of a revision that is no more."""


class _PackPull:
    """One pack, over as many streams as it takes."""

    def __init__(
        self, staging: Staging, channel: ChannelSettings, request: bases.ExportKnowledgeBaseRequest,
        progress: Progress, call_s: float,
    ) -> None:  # fmt: skip
        self._staging, self._channel, self._call_s = staging, channel, call_s
        self._request, self._progress = request, progress
        self._file = staging.folder / staging.place.name
        self._received = 0

    def run(self) -> Pulled:
        with open_channel(self._channel) as opened:
            self._stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(opened)
            for start in range(STARTS):
                try:
                    head = resumed(self._continue, lambda: self._received)
                except _Changed:
                    self._staging.clear()
                    time.sleep(_PAUSE_S * start)
                    continue
                remove(self._staging.place)
                self._file.replace(self._staging.place)
                return Pulled(self._staging.place, head)
        raise StorageError(
            f"knowledge base {self._request.name!r} was written to {STARTS} times while it was being fetched:"
            " run the same command when its ingestion is over",
            reason="KNOWLEDGE_BASE_CHANGING",
        )

    def _continue(self) -> Head:
        """One stream, from where the last one stopped; the pack's head when everything is there."""
        with self._staging.room(), ExitStack() as opened:
            if (base := self._collected()) is not None:
                opened.callback(base.close)
            ids = np.zeros(0, np.uint64) if base is None else base.memory_ids()
            last_id = int(ids[-1]) if len(ids) else None
            responses = self._responses(last_id, base.head.revision if base is not None else 0)
            head = self._head(responses)
            if base is None:
                self._staging.clear()
                base = LocalKnowledgeBase.create(self._file, head)
                opened.callback(base.close)
            if head != base.head:
                raise _Changed
            each = self._whole_bytes // head.memories
            count, digest = len(ids), int(np.bitwise_xor.reduce(ids)) if len(ids) else 0
            self._staging.require_room((head.memories - count) * each)
            self._progress(count * each, head.memories * each, head.name)
            for response in responses:
                page = list(_checked(response.page, head, last_id))
                base.append(page)
                for one in page:
                    digest, last_id = digest ^ one.memory_id, one.memory_id
                count += len(page)
                self._received += 1
                self._progress(count * each, head.memories * each, head.name)
            if count < head.memories:
                message = f"the export ended after {count} of {head.memories} memories"
                raise RetrievalError(message, reason="UNREACHABLE", unavailable=True)
            if digest != head.id_digest:
                raise _Changed
            base.merge_journal()
            return head

    def _collected(self) -> LocalKnowledgeBase | None:
        """What an interrupted pull left, if it can be gone on with."""
        try:
            return LocalKnowledgeBase.any(self._file)
        except (MissingFile, CorruptFile):
            return None

    def _responses(self, last_id: int | None, revision: int) -> _Responses:
        """The stream after the memory `last_id`."""
        request = bases.ExportKnowledgeBaseRequest(after_id=last_id, revision=revision)
        request.MergeFrom(self._request)
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
        if not (in_order and np.isfinite(norm) and norm > 0 and google_crc32c.value(payload) == memory.payload_crc32c):
            raise RetrievalError(
                f"memory {memory_id:016x} of {memory.document_key!r} came damaged", reason="DAMAGED_MEMORY"
            )
        last_id = memory_id
        yield Reference(
            memory_id, memory.document_key, memory.title, memory.chunk_number, memory.text,
            (vector / norm).astype("<f4"), payload, memory.payload_crc32c,
        )  # fmt: skip
