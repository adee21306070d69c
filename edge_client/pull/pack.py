"""Fetches a knowledge base as a memory pack: resumable, every memory checked, one revision, installed whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import google_crc32c
import numpy as np

from edge_client.errors import RetrievalError, StorageError
from edge_client.pull.pack_files import (
    RECORD,
    PackedMemory,
    PackHead,
    PackManifest,
    PackWriter,
    check_pack_place,
)
from edge_client.pull.staging import CALL_S, Progress, Staging, messages, resumed, silent
from edge_client.wire.channel import ChannelSettings, open_async_channel
from memory_model.codec.payload import Identity
from protos.memory.v1 import knowledge_bases_pb2 as bases
from protos.memory.v1 import knowledge_bases_pb2_grpc

PACKS = Path("build/packs")
STARTS = 4
"""Times that a pull starts anew because the knowledge base was written to, before it gives up."""
_PAUSE_S = 1.0
_HEAD = "head.json"
_Responses = AsyncIterator[bases.ExportKnowledgeBaseResponse]


def pull_pack(
    channel: ChannelSettings, knowledge_base: str, place: Path, *, identity: Identity | None = None,
    embedder_id: str = "", limit: int | None = None, progress: Progress = silent, call_s: float = CALL_S,
) -> PackManifest:  # fmt: skip
    """Fetch the memories of `knowledge_base` to the folder `place`; an older pack there is replaced in the end.

    identity, embedder_id: of the bundle that will read it; the service refuses another one's. limit: memories at
    most, those of the smallest ids, which are a random choice. call_s: deadline of one stream. Interrupted, the next
    call goes on where it stopped. Not for a thread with a running event loop. Raises RetrievalError (DAMAGED_MEMORY for
    a memory that came damaged), StorageError (KNOWLEDGE_BASE_CHANGING where it is written to again and again),
    InvalidInput for a place that holds something else.
    """
    check_pack_place(place)
    request = bases.ExportKnowledgeBaseRequest(name=knowledge_base, embedder_id=embedder_id)
    if identity is not None:
        request.model_id, request.codec_id = identity.model_id, identity.codec_id
        request.memory_format_id = identity.memory_format_id
    with Staging(place) as staging:
        return asyncio.run(_PackPull(staging, channel, request, limit, progress, call_s).run())


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

    async def run(self) -> PackManifest:
        async with open_async_channel(self._channel) as opened:
            self._stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(opened)
            for start in range(STARTS):
                try:
                    return await resumed(self._continue, lambda: self._received)
                except _Changed:
                    self._staging.clear()
                    await asyncio.sleep(_PAUSE_S * start)
        raise StorageError(
            f"knowledge base {self._request.name!r} was written to {STARTS} times while it was being fetched:"
            " run the same command when its ingestion is over",
            reason="KNOWLEDGE_BASE_CHANGING",
        )

    async def _continue(self) -> PackManifest:
        """One stream, from where the last one stopped; the manifest when everything is there."""
        folder, stored = self._staging.folder, self._stored_head()
        with self._staging.room(), contextlib.ExitStack() as opened:
            if stored is None:
                self._staging.clear()
                responses = self._responses(0, None, 0)
                head = await self._head(responses)
                (folder / _HEAD).write_text(json.dumps(asdict(head)), encoding="utf-8")
                writer = opened.enter_context(PackWriter(folder, head.dimension))
            else:
                writer = opened.enter_context(PackWriter(folder, stored.dimension))
                responses = self._responses(writer.count, writer.last_id, stored.revision)
                head = await self._head(responses)
                if head != stored:
                    raise _Changed
            wanted = min(self._limit or head.memories, head.memories)
            total_bytes = self._whole_bytes * wanted // head.memories
            self._staging.require_room(max(total_bytes - writer.total_bytes, 0))
            self._progress(min(writer.total_bytes, total_bytes), total_bytes, head.knowledge_base)
            while writer.count < wanted and (response := await anext(responses, None)) is not None:
                page = list(_checked(response.page, head, writer.last_id))
                writer.append(page[: wanted - writer.count])
                self._received += 1
                self._progress(min(writer.total_bytes, total_bytes), total_bytes, head.knowledge_base)
            if writer.count < wanted:
                message = f"the export ended after {writer.count} of {wanted} memories"
                raise RetrievalError(message, reason="UNREACHABLE", unavailable=True)
            if wanted == head.memories and writer.id_digest != head.id_digest:
                raise _Changed
            manifest = writer.finish(head, datetime.now(timezone.utc).isoformat(timespec="seconds"))
            (folder / _HEAD).unlink()
            self._staging.install()
            return manifest

    async def _responses(self, count: int, last_id: int | None, revision: int) -> _Responses:
        """The stream after the first `count` memories."""
        request = bases.ExportKnowledgeBaseRequest(after_id=last_id, revision=revision)
        request.MergeFrom(self._request)
        if self._limit is not None:
            request.limit = max(self._limit - count, 1)  # 0 means all on the wire
        call = self._stub.ExportKnowledgeBase(request, timeout=self._call_s, metadata=self._channel.metadata)
        try:
            async for response in messages(call, self._channel.address, self._call_s):
                yield response
        except RetrievalError as error:
            if error.reason == "KNOWLEDGE_BASE_CHANGED":
                raise _Changed from error
            raise

    async def _head(self, responses: _Responses) -> PackHead:
        first = await anext(responses, None)
        if first is None or not first.HasField("head"):
            message = f"the service at {self._channel.address} sent an export without its head"
            raise RetrievalError(message, reason="INCOMPATIBLE")
        sent, base = first.head, first.head.knowledge_base
        head = PackHead(
            base.name, sent.revision, base.model_id, base.codec_id, base.memory_format_id, base.embedder_id,
            base.dimension, sent.rerank_candidates, sent.memory_count, sent.id_digest,
        )  # fmt: skip
        if head.memories == 0:
            message = f"knowledge base {head.knowledge_base!r} has no memories: ingest documents first"
            raise StorageError(message)
        rows_bytes = head.memories * (4 * head.dimension + RECORD.itemsize)
        self._whole_bytes = sent.payload_bytes + sent.text_bytes + rows_bytes
        return head

    def _stored_head(self) -> PackHead | None:
        try:
            return PackHead(**json.loads((self._staging.folder / _HEAD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def _checked(page: bases.ExportPage, head: PackHead, last_id: int | None) -> Iterator[PackedMemory]:
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
        yield PackedMemory(
            memory_id, memory.document_key.encode(), memory.title.encode(), memory.text.encode(), memory.chunk_number,
            (vector / norm).astype("<f4").tobytes(), payload, memory.payload_crc32c,
        )  # fmt: skip
