"""The client side of Ingestion.Ingest: files up, answers down, going on after lost connections and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from memory_service.client.formats import SourceDocument, read_documents
from memory_service.client.journal import Journal
from memory_service.client.near_duplicates import NearDuplicates
from memory_service.client.remote import RemoteError, channel_to, remote_error
from protos.memory.v1 import ingestion_pb2 as pb
from protos.memory.v1 import ingestion_pb2_grpc, knowledge_bases_pb2, knowledge_bases_pb2_grpc

_WINDOW = 256
_SAVE_EVERY_S = 1.0


@dataclass(frozen=True)
class Answer:
    """What became of a document: stored, replaced, unchanged, failed, duplicate, or skipped: the journal has it."""

    document: SourceDocument
    outcome: str
    references: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class IngestChoices:
    """How to ingest.

    create: the knowledge base where it is missing. attempts: connections lost in a row, without an answer in between,
    before it gives up: ten are some 45 s, in which a service loads its model and store. memory_writing,
    overlap_tokens: see IngestStart. near_duplicates: documents that nearly equal an earlier one of this
    ingestion are left out.
    """

    create: bool = True
    attempts: int = 10
    memory_writing: pb.MemoryWriting = pb.MEMORY_WRITING_UNSPECIFIED
    overlap_tokens: int = 0
    near_duplicates: NearDuplicates | None = None


@dataclass
class Summary:
    """Counts of an ingestion."""

    outcomes: dict[str, int] = field(default_factory=dict)
    references: int = 0
    failures: list[Answer] = field(default_factory=list)
    interrupted: bool = False

    @property
    def done(self) -> int:
        """Documents that have their answer."""
        return sum(self.outcomes.values())

    def add(self, answer: Answer) -> None:
        """Counts one answer."""
        self.outcomes[answer.outcome] = self.outcomes.get(answer.outcome, 0) + 1
        self.references += answer.references
        if answer.outcome == "failed":
            self.failures.append(answer)


_OUTCOMES = {
    pb.INGEST_OUTCOME_STORED: "stored",
    pb.INGEST_OUTCOME_REPLACED: "replaced",
    pb.INGEST_OUTCOME_UNCHANGED: "unchanged",
}


class IngestClient:
    """One ingestion of some files. Use once, on one event loop; `interrupt` ends it after what is under way."""

    def __init__(
        self, address: str, knowledge_base: str, sources: Sequence[Path], journals: Path,
        choices: IngestChoices | None = None, *, on_answer: Callable[[Answer], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """journals: the folder that knows how far each file has come."""
        self._address = address
        self._knowledge_base = knowledge_base
        self._sources = sources
        self._journal_folder = journals
        self._choices = choices or IngestChoices()
        self._on_answer = on_answer
        self._journals: dict[Path, Journal] = {}
        self._unanswered: dict[int, SourceDocument] = {}
        self._window = asyncio.Semaphore(_WINDOW)
        self._stop = asyncio.Event()
        self._saved_at = 0.0
        self.summary = Summary()

    def interrupt(self) -> None:
        """Sends no more documents; `run` returns when those under way are answered."""
        self.summary.interrupted = True
        self._stop.set()

    async def run(self) -> Summary:
        """Ingests all files. Raises RemoteError when the service refuses, or stays away, for good."""
        documents = self._to_send()
        lost = 0
        try:
            async with channel_to(self._address) as channel:
                await self._open_journals(channel)
                while True:
                    answered = self.summary.done
                    try:
                        await self._stream(channel, documents)
                        break
                    except RemoteError as error:
                        lost = 1 if self.summary.done > answered else lost + 1
                        if not error.retryable or lost >= self._choices.attempts or self._stop.is_set():
                            raise
                        with contextlib.suppress(asyncio.TimeoutError):
                            await asyncio.wait_for(self._stop.wait(), min(0.25 * 2**lost, 8.0))
        finally:
            for journal in self._journals.values():
                journal.save()
        if not self.summary.interrupted:
            for journal in self._journals.values():
                if not journal.has_failures:
                    journal.remove()
        return self.summary

    async def _open_journals(self, channel: grpc.aio.Channel) -> None:
        """A journal is of a knowledge base with its time of creation."""
        base = await open_base(channel, self._address, self._knowledge_base, create=self._choices.create)
        created = base.created_at.ToJsonString()
        for source in self._sources:
            self._journals[source] = Journal(self._journal_folder, source, self._address, base.name, created)

    def _to_send(self) -> Iterator[tuple[int, SourceDocument]]:
        """Documents that the journals lack, by sequence number; those that cannot be read are answered here."""
        sequence = 0
        for source in self._sources:
            for document in read_documents(source):
                sequence += 1
                twin = self._twin(document)
                if self._journals[source].has(document.number):
                    self._answer(Answer(document, "skipped"))
                elif document.error:
                    self._answer(Answer(document, "failed", reason="UNREADABLE", message=document.error))
                elif twin:
                    self._answer(Answer(document, "duplicate", message=f"nearly equals {twin}"))
                else:
                    yield sequence, document

    def _twin(self, document: SourceDocument) -> str:
        near = self._choices.near_duplicates
        return near.twin(document.key, document.text) if near and not document.error else ""

    async def _stream(
        self, channel: grpc.aio.Channel, documents: Iterator[tuple[int, SourceDocument]]
    ) -> None:
        """One stream: what the last one left unanswered, then the rest. Raises RemoteError."""
        call = ingestion_pb2_grpc.IngestionStub(channel).Ingest()
        sender: asyncio.Task[None] | None = None
        try:
            start = pb.IngestStart(
                knowledge_base=self._knowledge_base, memory_writing=self._choices.memory_writing,
                overlap_tokens=self._choices.overlap_tokens,
            )  # fmt: skip
            await call.write(pb.IngestRequest(start=start))
            async for response in call:
                kind = response.WhichOneof("message")
                if kind == "started":
                    limit = response.started.document_limit_bytes
                    sender = asyncio.create_task(self._send(call, documents, limit))
                elif kind == "acknowledged":
                    ack = response.acknowledged
                    outcome = _OUTCOMES.get(ack.outcome, "stored")
                    self._answered(ack.sequence, outcome, references=ack.reference_count)
                elif kind == "failed":
                    failed = response.failed
                    self._answered(failed.sequence, "failed", reason=failed.reason, message=failed.message)
            if sender is not None:
                await sender
        except grpc.aio.AioRpcError as error:
            raise remote_error(error, self._address) from error
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
            call.cancel()

    async def _send(
        self, call: Any, documents: Iterator[tuple[int, SourceDocument]], limit_bytes: int
    ) -> None:
        for sequence, document in sorted(self._unanswered.items()):
            await call.write(_request(sequence, document))
        while not self._stop.is_set():
            await self._window.acquire()
            following = next(documents, None)
            if following is None:
                break
            sequence, document = following
            size = len(document.text.encode())
            if size > limit_bytes:
                message = f"the document has {size} bytes of text, at most {limit_bytes}: cut it into several"
                self._answer(Answer(document, "failed", reason="DOCUMENT_TOO_LARGE", message=message))
                self._window.release()
                continue
            self._unanswered[sequence] = document
            await call.write(_request(sequence, document))
        await call.done_writing()

    def _answered(self, sequence: int, outcome: str, **details: Any) -> None:
        document = self._unanswered.pop(sequence, None)
        if document is not None:
            self._window.release()
            self._answer(Answer(document, outcome, **details))

    def _answer(self, answer: Answer) -> None:
        self.summary.add(answer)
        if answer.outcome != "skipped":
            self._journals[answer.document.source].answer(
                answer.document.number, failed=answer.outcome == "failed"
            )
            if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
                self._saved_at = time.monotonic()
                for journal in self._journals.values():
                    journal.save()
        self._on_answer(answer)


async def open_base(
    channel: grpc.aio.Channel, address: str, name: str, *, create: bool
) -> knowledge_bases_pb2.KnowledgeBase:
    """The knowledge base to write to, created where it is missing and `create` is set; raises RemoteError."""
    bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
    try:
        try:
            request = knowledge_bases_pb2.GetKnowledgeBaseRequest(name=name)
            return (await bases.GetKnowledgeBase(request, wait_for_ready=True, timeout=5)).knowledge_base
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND or not create:
                raise
            new = knowledge_bases_pb2.CreateKnowledgeBaseRequest(name=name)
            return (await bases.CreateKnowledgeBase(new, timeout=30)).knowledge_base
    except grpc.aio.AioRpcError as error:
        raise remote_error(error, address) from error


def _request(sequence: int, document: SourceDocument) -> pb.IngestRequest:
    content = pb.Document(
        key=document.key, title=document.title, text=document.text, metadata=document.metadata
    )
    return pb.IngestRequest(item=pb.IngestItem(sequence=sequence, document=content))
