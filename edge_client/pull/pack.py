"""Fetches a knowledge base as a memory pack, a local knowledge base's file: resumable, checked, one revision."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_client.errors import RetrievalError, StorageError
from edge_client.local.knowledge_base import Head, LocalKnowledgeBase, read_head
from edge_client.pull.staging import CALL_S, Progress, Staging, messages, resumed, silent
from edge_client.wire.channel import ChannelSettings, open_channel
from edge_client.wire.retrieval import Hit
from memory_model.codec.payload import Identity
from memory_model.errors import InvalidInput, Memory3Error
from protos.memory.v1 import knowledge_bases_pb2 as bases
from protos.memory.v1 import knowledge_bases_pb2_grpc

PACKS = Path("build/packs")
STARTS = 4
"""Times that a pull starts anew because the knowledge base was written to, before it gives up."""
_PAUSE_S = 1.0
_FILE = "pack.sqlite"
_ROW_BYTES = 256  # of a memory in the file, beside payload, text and vector
_Responses = Generator[bases.ExportKnowledgeBaseResponse, None, None]


def pull_pack(
    channel: ChannelSettings, knowledge_base: str, place: Path, *, identity: Identity | None = None,
    embedder_id: str = "", limit: int | None = None, progress: Progress = silent, call_s: float = CALL_S,
) -> Head:  # fmt: skip
    """Fetch the memories of `knowledge_base` to the file `place`; an older pack there is replaced in the end.

    identity, embedder_id: of the bundle that will read it; the service refuses another one's. limit: memories at
    most, those of the smallest ids, which are a random choice. call_s: deadline of one stream. Interrupted, the next
    call goes on where it stopped. Raises RetrievalError (DAMAGED_MEMORY for a memory that came damaged), StorageError
    (KNOWLEDGE_BASE_CHANGING where it is written to again and again), InvalidInput for a place that holds something
    else.
    """
    if place.exists():
        try:
            read_head(place)
        except Memory3Error as error:
            raise InvalidInput(f"{place} exists and is not a memory pack: choose another place") from error
    request = bases.ExportKnowledgeBaseRequest(name=knowledge_base, embedder_id=embedder_id)
    if identity is not None:
        request.model_id, request.codec_id = identity.model_id, identity.codec_id
        request.memory_format_id = identity.memory_format_id
    with Staging(place) as staging, open_channel(channel) as opened:
        stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(opened)
        return _PackPull(staging, channel, stub, request, limit, progress, call_s).run()


class _Changed(Exception):
    """What was collected is of a revision that is no more, or damaged."""


class _PackPull:
    """One pack, over as many streams as it takes. Every page is one transaction of the file."""

    def __init__(
        self, staging: Staging, channel: ChannelSettings, stub: knowledge_bases_pb2_grpc.KnowledgeBasesStub,
        request: bases.ExportKnowledgeBaseRequest, limit: int | None, progress: Progress, call_s: float,
    ) -> None:  # fmt: skip
        self._staging, self._channel, self._stub, self._call_s = staging, channel, stub, call_s
        self._request, self._limit, self._progress = request, limit, progress
        self._file = staging.folder / _FILE
        self._received = 0

    def run(self) -> Head:
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

    def _continue(self) -> Head:
        """One stream, from where the last one stopped; the head when everything is there."""
        with self._staging.room(), contextlib.ExitStack() as opened:
            pack = self._stored()
            count, last_id, _ = pack.pulled() if pack else (0, None, 0)
            responses = self._responses(count, last_id, pack.head.revision if pack else 0)
            opened.callback(responses.close)
            if pack is not None:
                opened.callback(pack.close)
            head, content_bytes = self._head(responses)
            if pack is None:
                pack = LocalKnowledgeBase.create(self._file, head)
                opened.callback(pack.close)
            elif replace(head, pulled_at=pack.head.pulled_at) != pack.head:
                raise _Changed
            wanted = min(self._limit or head.memories, head.memories)
            each_bytes = content_bytes // head.memories
            self._staging.require_room((wanted - count) * each_bytes)
            self._progress(count * each_bytes, wanted * each_bytes, head.name)
            while count < wanted and (response := next(responses, None)) is not None:
                page = _checked(response.page, head, last_id)[: wanted - count]
                pack.add_hits(page)
                count, last_id = count + len(page), page[-1][0].memory_id
                self._received += 1
                self._progress(count * each_bytes, wanted * each_bytes, head.name)
            if count < wanted:
                message = f"the export ended after {count} of {wanted} memories"
                raise RetrievalError(message, reason="UNREACHABLE", unavailable=True)
            if wanted == head.memories and pack.pulled()[2] != head.id_digest:
                raise _Changed
        self._staging.install(self._file)
        return pack.head

    def _stored(self) -> LocalKnowledgeBase | None:
        """What an earlier run collected; none, or what is damaged, is begun anew."""
        try:
            head = read_head(self._file)
            identity = Identity(head.model_id, head.codec_id, head.memory_format_id)
            stored = LocalKnowledgeBase.open(self._file, identity, head.embedder_id)
            stored.verify()
        except Memory3Error:
            self._staging.clear()
            return None
        return stored

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

    def _head(self, responses: _Responses) -> tuple[Head, int]:
        """What is exported, and how many bytes of it there are."""
        first = next(responses, None)
        if first is None or not first.HasField("head"):
            message = f"the service at {self._channel.address} sent an export without its head"
            raise RetrievalError(message, reason="INCOMPATIBLE")
        sent, base = first.head, first.head.knowledge_base
        if sent.memory_count == 0:
            raise StorageError(f"knowledge base {base.name!r} has no memories: ingest documents first")
        head = Head(
            base.name, base.model_id, base.codec_id, base.memory_format_id, base.embedder_id, base.dimension,
            revision=sent.revision, memories=sent.memory_count, id_digest=sent.id_digest,
            pulled_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )  # fmt: skip
        rows_bytes = head.memories * (4 * head.dimension + _ROW_BYTES)
        return head, int(sent.payload_bytes + sent.text_bytes + rows_bytes)


def _checked(page: bases.ExportPage, head: Head, last_id: int | None) -> list[tuple[Hit, np.ndarray]]:
    """The memories of a page with their vectors of unit length; raises RetrievalError (DAMAGED_MEMORY)."""
    checked = []
    for memory in page.memories:
        memory_id, raw = memory.memory_id, memory.vector
        vector = np.frombuffer(raw, "<f4") if len(raw) == 4 * head.dimension else np.zeros(1)
        norm = float(np.linalg.norm(vector.astype(np.float64)))
        in_order = last_id is None or memory_id > last_id
        if not (in_order and np.isfinite(norm) and norm > 0):
            message = f"memory {memory_id:016x} came with a vector or an id that cannot be"
            raise RetrievalError(message, reason="DAMAGED_MEMORY")
        hit = Hit(
            memory_id, 0.0, memory.document_key, memory.title, memory.chunk_number, memory.text, memory.payload,
            memory.payload_crc32c,
        )  # fmt: skip
        hit.check()
        last_id = memory_id
        checked.append((hit, (vector / norm).astype("<f4")))
    return checked
