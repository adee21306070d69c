"""Fetches a knowledge base as a memory pack: resumable, every memory checked, one revision, installed whole."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import google_crc32c
import numpy as np

from edge_client.cancellation import Cancellation
from edge_client.errors import (
    DamagedMemory,
    IncompatibleService,
    KnowledgeBaseChanging,
    PullError,
    RequestRefused,
    ServiceUnavailable,
)
from edge_client.interruptible import interruptible
from edge_client.pull.bundle import Progress, silent
from edge_client.pull.calls import CALL_S, Calls
from edge_client.pull.pack_files import (
    RECORD,
    PackedMemory,
    PackHead,
    PackManifest,
    PackWriter,
    check_pack_place,
)
from edge_client.pull.staging import Staging
from edge_client.wire.channel import ChannelSettings, open_channel
from memory_model.codec.payload import Identity
from protos.memory.v1 import knowledge_bases_pb2, knowledge_bases_pb2_grpc

PACKS = Path("build/packs")
STARTS = 4
"""Times that it starts anew because the knowledge base was written to, before it gives up."""
_PAUSE_S = 1.0
_HEAD = "head.json"
_Responses = Generator[knowledge_bases_pb2.ExportKnowledgeBaseResponse, None, None]


def pull_pack(
    channel: ChannelSettings, knowledge_base: str, place: Path, *, identity: Identity | None = None,
    embedder_id: str = "", limit: int | None = None, progress: Progress = silent, call_s: float = CALL_S,
) -> PackManifest:  # fmt: skip
    """Fetch the memories of `knowledge_base` to the folder `place`; an older pack there is replaced in the end.

    identity, embedder_id: of the bundle that shall read it; the service refuses another one's. limit: memories at
    most, those of the smallest ids, which are a random choice. Interrupted, the next call goes on where it stopped.
    Raises RetrievalErrors of the service, DiskFull, PullUnderWay, InvalidInput for a place that holds something else,
    KnowledgeBaseChanging, DamagedMemory for a memory that came damaged.
    """
    check_pack_place(place)
    request = knowledge_bases_pb2.ExportKnowledgeBaseRequest(name=knowledge_base, embedder_id=embedder_id)
    if identity is not None:
        request.model_id, request.codec_id = identity.model_id, identity.codec_id
        request.memory_format_id = identity.memory_format_id

    def fetch(cancellation: Cancellation) -> PackManifest:
        calls = Calls(channel, call_s, cancellation)
        with Staging(place) as staging, open_channel(channel) as opened:
            stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(opened)
            return _fetched(_PackPull(staging, stub, request, limit, progress, calls), calls, staging)

    return interruptible(fetch)


def _fetched(pull: _PackPull, calls: Calls, staging: Staging) -> PackManifest:
    """The pack whole, of one revision; raises KnowledgeBaseChanging."""
    for start in range(STARTS):
        try:
            return calls.persistently(pull.run, lambda: pull.received)
        except _Changed:
            staging.clear()
            calls.pause(_PAUSE_S * start)
    knowledge_base = pull.knowledge_base
    raise KnowledgeBaseChanging(
        f"knowledge base {knowledge_base!r} was written to {STARTS} times while it was being fetched:"
        " run the same command when its ingestion is over"
    )


class _Changed(Exception):
    """What was collected is of a revision that is no more."""


class _PackPull:
    """One pack; `run` is one stream, from where the last one stopped."""

    def __init__(
        self, staging: Staging, stub: knowledge_bases_pb2_grpc.KnowledgeBasesStub,
        request: knowledge_bases_pb2.ExportKnowledgeBaseRequest, limit: int | None, progress: Progress, calls: Calls,
    ) -> None:  # fmt: skip
        self.knowledge_base = request.name
        self._staging, self._stub, self._calls = staging, stub, calls
        self._request, self._limit, self._progress = request, limit, progress
        self._wanted = self._total_bytes = 0
        self.received = 0

    def run(self) -> PackManifest:
        stored = self._stored_head()
        with self._staging.room(), contextlib.ExitStack() as opened:
            if stored is None:
                self._staging.clear()
                responses = self._responses(self._request_from(0, None, 0))
                head = self._head(responses)
                (self._staging.folder / _HEAD).write_text(json.dumps(asdict(head)), encoding="utf-8")
                writer = opened.enter_context(PackWriter(self._staging.folder, head.dimension))
            else:
                writer = opened.enter_context(PackWriter(self._staging.folder, stored.dimension))
                responses = self._responses(self._request_from(writer.count, writer.last_id, stored.revision))
                head = self._head(responses)
                if head != stored:
                    raise _Changed
            opened.callback(responses.close)
            return self._collect(writer, head, responses)

    def _request_from(
        self, count: int, last_id: int | None, revision: int
    ) -> knowledge_bases_pb2.ExportKnowledgeBaseRequest:
        request = knowledge_bases_pb2.ExportKnowledgeBaseRequest(after_id=last_id, revision=revision)
        request.MergeFrom(self._request)
        if self._limit is not None:
            request.limit = max(self._limit - count, 1)  # 0 means all on the wire
        return request

    def _head(self, responses: _Responses) -> PackHead:
        first = next(responses, None)
        if first is None or not first.HasField("head"):
            raise IncompatibleService(
                f"the service at {self._calls.channel.address} sent an export without its head"
            )
        head = _head_of(first.head)
        if head.memories == 0:
            raise PullError(f"knowledge base {head.knowledge_base!r} has no memories: ingest documents first")
        of_one = 4 * head.dimension + RECORD.itemsize
        whole = first.head.payload_bytes + first.head.text_bytes + head.memories * of_one
        self._wanted = head.memories if self._limit is None else min(self._limit, head.memories)
        self._total_bytes = whole * self._wanted // head.memories
        return head

    def _collect(self, writer: PackWriter, head: PackHead, responses: _Responses) -> PackManifest:
        self._staging.require_room(max(self._total_bytes - sum(writer.bytes.values()), 0))
        self._show(writer, head)
        while writer.count < self._wanted and (response := next(responses, None)) is not None:
            room = self._wanted - writer.count
            writer.append(list(_checked(response.page, head, writer.last_id))[:room])
            self.received += 1
            self._show(writer, head)
        return self._finished(writer, head)

    def _finished(self, writer: PackWriter, head: PackHead) -> PackManifest:
        if writer.count < self._wanted:
            raise ServiceUnavailable(f"the export ended after {writer.count} of {self._wanted} memories")
        if self._wanted == head.memories and writer.id_digest != head.id_digest:
            raise _Changed
        manifest = writer.finish(head, datetime.now(timezone.utc).isoformat(timespec="seconds"))
        (self._staging.folder / _HEAD).unlink()
        self._staging.install()
        return manifest

    def _responses(self, request: knowledge_bases_pb2.ExportKnowledgeBaseRequest) -> _Responses:
        calls = self._calls
        call = self._stub.ExportKnowledgeBase(request, timeout=calls.call_s, metadata=calls.channel.metadata)
        try:
            yield from calls.follow(call)
        except RequestRefused as error:
            if error.reason == "KNOWLEDGE_BASE_CHANGED":
                raise _Changed from error
            raise

    def _stored_head(self) -> PackHead | None:
        try:
            return PackHead(**json.loads((self._staging.folder / _HEAD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _show(self, writer: PackWriter, head: PackHead) -> None:
        done = min(sum(writer.bytes.values()), self._total_bytes)
        self._progress(done, self._total_bytes, head.knowledge_base)


def _head_of(message: knowledge_bases_pb2.ExportHead) -> PackHead:
    base = message.knowledge_base
    return PackHead(
        base.name, message.revision, base.model_id, base.codec_id, base.memory_format_id, base.embedder_id,
        base.dimension, message.rerank_candidates, message.memory_count, message.id_digest,
    )  # fmt: skip


def _checked(
    page: knowledge_bases_pb2.ExportPage, head: PackHead, last_id: int | None
) -> Iterator[PackedMemory]:
    """The memories of a page as they are packed; raises DamagedMemory for one that is not what it should be."""
    for memory in page.memories:
        memory_id, raw, payload = memory.memory_id, memory.vector, memory.payload
        vector = np.frombuffer(raw, "<f4") if len(raw) == 4 * head.dimension else np.zeros(1)
        norm = float(np.linalg.norm(vector.astype(np.float64)))
        in_order = last_id is None or memory_id > last_id
        if not (in_order and np.isfinite(norm) and norm > 0):
            raise DamagedMemory(f"memory {memory_id:016x} came with a vector or an id that cannot be")
        if google_crc32c.value(payload) != memory.payload_crc32c:
            raise DamagedMemory(
                f"memory {memory_id:016x} of {memory.document_key!r} came damaged: CRC-32C differs"
            )
        last_id = memory_id
        yield PackedMemory(
            memory_id, memory.document_key.encode(), memory.title.encode(), memory.text.encode(), memory.chunk_number,
            (vector / norm).astype("<f4").tobytes(), payload, memory.payload_crc32c,
        )  # fmt: skip
