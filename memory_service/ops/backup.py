"""Backups of a knowledge base, made over the wire while the service runs: consistent, checksummed, resumable.

parts/000000.pb …  memories in ascending order of their ids, a serialized ExportPage each, about 16 MiB
documents.jsonl    key, title, metadata and content hash of every document
manifest.json      written last: ids, counts, and SHA-256 of every file; without it there is no backup
manifest.sha256    its own SHA-256
progress.json      while it is being made: what is there already
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

import grpc
from pydantic import BaseModel, ConfigDict, ValidationError

from memory_model.errors import CorruptFile
from memory_service.client.remote import RemoteError, remote_error
from memory_service.ops.backup_shelf import Shelf
from protos.memory.v1 import ingestion_pb2, ingestion_pb2_grpc, knowledge_bases_pb2_grpc
from protos.memory.v1 import knowledge_bases_pb2 as pb

MANIFEST, PROGRESS, DOCUMENTS = "manifest.json", "progress.json", "documents.jsonl"
CHECKSUM = "manifest.sha256"
_ATTEMPTS = 5
_PART_BYTES = 16 << 20
_TOGETHER = 32
_TIMEOUT_S = 24 * 3600.0


class BackupFile(BaseModel):
    """One file of the backup."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    size_bytes: int

    def verified(self, shelf: Shelf) -> bytes:
        """Its content; raises MissingFile, CorruptFile."""
        data = shelf.fetch(self.name)
        if len(data) != self.size_bytes or hashlib.sha256(data).hexdigest() != self.sha256:
            raise CorruptFile(f"{shelf}/{self.name} is not what was written: take another backup")
        return data


class Progress(BaseModel):
    """What is there of a backup that is being made, as of one revision."""

    model_config = ConfigDict(extra="forbid")

    revision: int
    after_id: int | None = None
    memories: int = 0
    parts: list[BackupFile] = []
    document_keys: list[str] = []


class Manifest(BaseModel):
    """A whole backup. The ids are those of the knowledge base's model, codec, memory format and embedder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    knowledge_base: str
    description: str
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int
    revision: int
    memory_count: int
    id_digest: int
    document_count: int
    documents: BackupFile
    parts: list[BackupFile]

    @staticmethod
    def read(shelf: Shelf) -> Manifest:
        """Raises MissingFile, CorruptFile."""
        raw = shelf.fetch(MANIFEST)
        try:
            if hashlib.sha256(raw).hexdigest() != shelf.fetch(CHECKSUM).decode():
                raise CorruptFile(f"{shelf}/{MANIFEST} is not what was written: take another backup")
            return Manifest.model_validate_json(raw)
        except ValueError as error:
            raise CorruptFile(f"{shelf}/{MANIFEST} is no manifest of a backup") from error


class Backup:
    """One backup of one knowledge base. Use once, on one event loop; the same again goes on after an interruption."""

    def __init__(
        self, channel: grpc.aio.Channel, address: str, name: str, shelf: Shelf,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """on_progress: gets the memories that are saved, and all there are."""
        self._bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
        self._documents = ingestion_pb2_grpc.IngestionStub(channel)
        self._address = address
        self._name = name
        self._shelf = shelf
        self._on_progress = on_progress

    async def run(self) -> Manifest:
        """Makes it; begins anew when the knowledge base was written to meanwhile. Raises RemoteError and Shelf's."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._once()
            except grpc.aio.AioRpcError as error:
                failure = remote_error(error, self._address)
                if failure.reason != "KNOWLEDGE_BASE_CHANGED":
                    raise failure from error
                self._shelf.remove(PROGRESS)
                if attempt == _ATTEMPTS:
                    raise RemoteError(
                        f"knowledge base {self._name!r} was written to during {attempt} attempts: stop writing to it"
                        " while it is backed up",
                        failure.code, failure.reason,
                    ) from error  # fmt: skip
        raise AssertionError("the last attempt returns or raises")

    async def _once(self) -> Manifest:
        self._shelf.remove(MANIFEST)
        progress = self._begun()
        head = await self._memories(progress)
        documents = await self._document_lines(sorted(set(progress.document_keys)))
        # The documents were asked for one by one: they are of the same revision only if it still holds.
        await self._head(progress.revision)
        base = head.knowledge_base
        manifest = Manifest(
            knowledge_base=base.name, description=base.description, model_id=base.model_id, codec_id=base.codec_id,
            memory_format_id=base.memory_format_id, embedder_id=base.embedder_id, dimension=base.dimension,
            revision=head.revision, memory_count=head.memory_count, id_digest=head.id_digest,
            document_count=len(documents), documents=self._put(DOCUMENTS, "".join(documents).encode()),
            parts=progress.parts,
        )  # fmt: skip
        raw = manifest.model_dump_json(indent=1).encode()
        self._shelf.put(CHECKSUM, hashlib.sha256(raw).hexdigest().encode())
        self._shelf.put(MANIFEST, raw)
        self._shelf.remove(PROGRESS)
        return manifest

    def _begun(self) -> Progress:
        raw = self._shelf.get(PROGRESS)
        try:
            return Progress.model_validate_json(raw) if raw else Progress(revision=0)
        except ValidationError:
            return Progress(revision=0)  # its last line is missing: begin anew

    async def _head(self, revision: int) -> pb.ExportHead:
        stream = self._bases.ExportKnowledgeBase(
            pb.ExportKnowledgeBaseRequest(name=self._name, revision=revision, limit=1), timeout=60
        )
        heads = [response.head async for response in stream if response.WhichOneof("message") == "head"]
        return heads[0]

    async def _memories(self, progress: Progress) -> pb.ExportHead:
        """Saves the parts that are still to come; returns the head of the export."""
        request = pb.ExportKnowledgeBaseRequest(
            name=self._name, revision=progress.revision, after_id=progress.after_id
        )
        head, part, size = pb.ExportHead(), pb.ExportPage(), 0
        async for response in self._bases.ExportKnowledgeBase(request, timeout=_TIMEOUT_S):
            if response.WhichOneof("message") == "head":
                head = response.head
                progress.revision = head.revision
                continue
            part.memories.extend(response.page.memories)
            size += response.page.ByteSize()
            if size >= _PART_BYTES:
                self._save(progress, part)
                part, size = pb.ExportPage(), 0
            self._on_progress(progress.memories + len(part.memories), head.memory_count)
        if part.memories:
            self._save(progress, part)
        return head

    def _save(self, progress: Progress, part: pb.ExportPage) -> None:
        progress.parts.append(self._put(f"parts/{len(progress.parts):06d}.pb", part.SerializeToString()))
        progress.memories += len(part.memories)
        progress.after_id = part.memories[-1].memory_id
        known = set(progress.document_keys)
        progress.document_keys += sorted({m.document_key for m in part.memories} - known)
        self._shelf.put(PROGRESS, progress.model_dump_json().encode())

    def _put(self, name: str, data: bytes) -> BackupFile:
        self._shelf.put(name, data)
        return BackupFile(name=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))

    async def _document_lines(self, keys: Sequence[str]) -> list[str]:
        async def line(key: str) -> str:
            request = ingestion_pb2.GetDocumentRequest(knowledge_base=self._name, document_key=key)
            try:
                found = await self._documents.GetDocument(request, timeout=60)
            except grpc.aio.AioRpcError as error:
                await self._head_if_gone(error)
                raise
            document: dict[str, Any] = {
                "key": found.document_key, "title": found.title, "metadata": dict(found.metadata),
                "content_hash": found.content_hash.hex(), "references": len(found.references),
            }  # fmt: skip
            return json.dumps(document, ensure_ascii=False) + "\n"

        lines: list[str] = []
        for start in range(0, len(keys), _TOGETHER):
            lines += await asyncio.gather(*(line(key) for key in keys[start : start + _TOGETHER]))
        return lines

    async def _head_if_gone(self, error: grpc.aio.AioRpcError) -> None:
        """A document that is gone means that the knowledge base was written to: raises what says so."""
        if error.code() == grpc.StatusCode.NOT_FOUND:
            raw = self._shelf.get(PROGRESS)
            if raw:
                await self._head(Progress.model_validate_json(raw).revision)
