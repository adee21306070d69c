"""Fetches a memory pack: a local knowledge base written by a service, read where that service does not answer.

head -> room checked -> pages of memories after the last one that came, each checked -> install
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from edge_client.errors import RetrievalError, StorageError
from edge_client.local.folder import install, remove
from edge_client.local.knowledge_base import LocalKnowledgeBase, read_head
from edge_client.local.store import LocalStore
from edge_client.pull.transfer import Progress, ended, require_room, resumed, staged, stream
from memory3.channel import ChannelSettings, open_channel
from memory3.codec.payload import Identity
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.files.knowledge_file import Head, Reference
from protos.memory.v1 import knowledge_bases_pb2 as bases
from protos.memory.v1 import knowledge_bases_pb2_grpc

ROW_BYTES = 256
"""Of a memory's numbers, names and indices in a pack, about."""
STARTS = 4
"""Times that a pull of a pack starts anew because the knowledge base was written to, before it gives up."""
CHANGED = "KNOWLEDGE_BASE_CHANGED"
"""The service's reason, and ours, where what was collected is of a revision that is no more."""
_PAUSE_S = 1.0


def pull_pack(
    channel: ChannelSettings,
    knowledge_base: str,
    folder: Path,
    *,
    identity: Identity | None = None,
    embedder_id: str = "",
    progress: Progress = lambda *_: None,
) -> Head:
    """Fetch the memories of `knowledge_base` to the folder of local knowledge bases, replacing an older pack of it.

    identity, embedder_id: of the bundle that will read it; the service refuses another one's. Interrupted, the next
    call goes on where it stopped. Raises RetrievalError (DAMAGED_MEMORY for a memory that came damaged), StorageError
    (KNOWLEDGE_BASE_CHANGING where it is written to again and again), InvalidInput where the device has a knowledge base
    of its own by that name.
    """
    target = LocalStore(folder).path(knowledge_base, None).absolute()
    if target.exists() and not read_head(target).pulled:
        raise InvalidInput(f"{target} holds this device's own memories: choose another folder with --local")
    request = bases.ExportKnowledgeBaseRequest(name=knowledge_base, embedder_id=embedder_id)
    if identity is not None:
        request.model_id, request.codec_id = identity.model_id, identity.codec_id
        request.memory_format_id = identity.memory_format_id
    with staged(target) as staging, open_channel(channel) as opened:
        method = knowledge_bases_pb2_grpc.KnowledgeBasesStub(opened).ExportKnowledgeBase
        pull = _PackPull(channel, method, request, staging / target.name, progress)
        for start in range(STARTS):
            try:
                head = resumed(pull.go_on, lambda: pull.pages)
            except RetrievalError as error:
                if error.reason != CHANGED:
                    raise
                remove(pull.file)
                time.sleep(_PAUSE_S * start)
                continue
            install(pull.file, target)
            return head
    raise StorageError(
        f"knowledge base {knowledge_base!r} was written to {STARTS} times while it was being fetched: run the same"
        " command when its ingestion is over",
        reason="KNOWLEDGE_BASE_CHANGING",
    )


class _PackPull:
    """One pack, over as many streams as it takes. file: where it is collected. pages: that came."""

    def __init__(
        self,
        channel: ChannelSettings,
        method: Any,
        request: bases.ExportKnowledgeBaseRequest,
        file: Path,
        progress: Progress,
    ) -> None:
        self._channel, self._method, self._request, self._progress = channel, method, request, progress
        self.file, self.pages = file, 0

    def go_on(self) -> Head:
        """One stream, from where the last one stopped; the pack's head when everything is there."""
        request = bases.ExportKnowledgeBaseRequest()
        request.CopyFrom(self._request)
        ids, known = np.zeros(0, np.uint64), None
        with contextlib.suppress(MissingFile, CorruptFile), closing(LocalKnowledgeBase.any(self.file)) as base:
            ids, known = base.memory_ids(), base.head  # of an interrupted pull
            request.revision = known.revision
        if len(ids):
            request.after_id = int(ids[-1])
        responses = stream(self._channel, self._method, request)
        head, each = self._head(responses)
        if known is None:
            remove(self.file)
            LocalKnowledgeBase.create(self.file, head).close()
        elif head != known:
            raise RetrievalError(reason=CHANGED)
        count, digest = len(ids), int(np.bitwise_xor.reduce(ids)) if len(ids) else 0
        last_id = int(ids[-1]) if count else None
        require_room(self.file.parent, (head.memories - count) * each)
        self._progress(count * each, head.memories * each, head.name)
        with closing(LocalKnowledgeBase.any(self.file)) as base:
            for response in responses:
                page = list(_checked(response.page, head, last_id))
                base.append(page)
                for one in page:
                    digest, last_id = digest ^ one.memory_id, one.memory_id
                count += len(page)
                self.pages += 1
                self._progress(count * each, head.memories * each, head.name)
            if count < head.memories:
                raise ended("the export", count, head.memories)
            if digest != head.id_digest:
                raise RetrievalError(reason=CHANGED)
            base.merge_journal()
        return head

    def _head(self, responses: Iterator[bases.ExportKnowledgeBaseResponse]) -> tuple[Head, int]:
        """What comes, and the bytes of each memory, about."""
        first = next(responses, None)
        if first is None or not first.HasField("head"):
            message = f"the service at {self._channel.address} sent an export without its head"
            raise RetrievalError(message, reason="INCOMPATIBLE")
        sent = first.head
        head = Head.of_export(sent)
        if head.memories == 0:
            raise StorageError(f"knowledge base {head.name!r} has no memories: ingest documents first")
        row_bytes = 4 * head.dimension + ROW_BYTES
        return head, (sent.payload_bytes + sent.text_bytes) // head.memories + row_bytes


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
            memory_id,
            memory.document_key,
            memory.title,
            memory.chunk_number,
            memory.text,
            (vector / norm).astype("<f4"),
            payload,
            memory.payload_crc32c,
        )
