"""The service as the page and the terminal need it: its knowledge bases, and this device's documents written into one.

Recalling does not come this way: `edge_client.recall.recaller` has its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import grpc.aio

from edge_client.errors import RetrievalError
from edge_client.wire.channel import ChannelSettings, open_async_channel
from edge_client.wire.errors import named_errors, status_details
from memory_model.errors import InvalidInput, MissingFile
from protos.memory.v1 import ingestion_pb2 as ingestion
from protos.memory.v1 import ingestion_pb2_grpc, knowledge_bases_pb2_grpc, models_pb2, models_pb2_grpc
from protos.memory.v1 import knowledge_bases_pb2 as bases

CALL_S = 5.0
PROBE_S = 1.5
INGEST_S = 600.0
ATTEMPTS = 4
LONGEST_PAUSE_S = 10.0
"""A document that may be sent again only later than this has failed for the person who waits."""
_STATES = {
    bases.KNOWLEDGE_BASE_STATE_READY: "ready",
    bases.KNOWLEDGE_BASE_STATE_DAMAGED: "damaged",
    bases.KNOWLEDGE_BASE_STATE_MISMATCHED: "mismatched",
}
_OUTCOMES = {
    ingestion.INGEST_OUTCOME_STORED: "stored",
    ingestion.INGEST_OUTCOME_REPLACED: "replaced",
    ingestion.INGEST_OUTCOME_UNCHANGED: "unchanged",
}
LARGEST_BYTES = 4 << 20
LONGEST_KEY_BYTES = 1024
LONGEST_TITLE = 200
_OTHER_FORMATS = {
    b"PK\x03\x04": "an archive or an office document", b"\xd0\xcf\x11\xe0": "an office document",
}  # fmt: skip


@dataclass(frozen=True)
class OwnDocument:
    """Checked when made; raises InvalidInput. key: a later document of that key replaces this one."""

    key: str
    title: str
    text: str

    def __post_init__(self) -> None:
        """Refuse what the service would refuse later, or what holds nothing."""
        if (
            not 0 < len(self.key.encode(errors="replace")) <= LONGEST_KEY_BYTES
            or len(self.title) > LONGEST_TITLE
        ):
            raise InvalidInput(
                f"a key has 1 to {LONGEST_KEY_BYTES} bytes, a title at most {LONGEST_TITLE} characters"
            )
        if not self.text.strip():
            raise InvalidInput("the document is empty")


def text_of(content: bytes) -> str:
    """The text of a file's bytes, a PDF or UTF-8 with or without a mark; raises InvalidInput, which says what to do."""
    if content.startswith(b"%PDF-"):
        return _pdf_text(content)
    for beginning, name in _OTHER_FORMATS.items():
        if content.startswith(beginning):
            raise InvalidInput(
                f"the document is {name}, not text: save it as text, or let `memory-service ingest` read it"
            )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the document is no UTF-8 text (byte {error.start}): save it as text first"
        ) from error
    if "\0" in text:
        raise InvalidInput("the document holds zero bytes, so it is no text: convert it first")
    return text


def _pdf_text(content: bytes) -> str:
    try:
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError
    except ImportError as error:
        raise InvalidInput("the document is a PDF: save it as text, or `pip install pypdf`") from error
    try:
        text = "\n\n".join(page.extract_text() for page in PdfReader(io.BytesIO(content)).pages)
    except (PyPdfError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"the PDF cannot be read ({type(error).__name__}): save it as text first"
        ) from error
    if not text.strip():
        raise InvalidInput("the PDF holds no text, only pictures of it: recognise its text first")
    return text


def document_of(path: str | Path) -> OwnDocument:
    """A file of this device: its name is the key, its name without the ending the title.

    Raises MissingFile, InvalidInput.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise InvalidInput(
                f"{file} is larger than {LARGEST_BYTES >> 20} MB: let `memory-service ingest` read it"
            )
        content = file.read_bytes()
    except OSError as error:
        raise MissingFile(f"{file} cannot be read: {error.strerror}") from error
    name = os.fsencode(file.name).decode(errors="replace")  # file names are bytes, keys are text
    return OwnDocument(name, PurePath(name).stem[:LONGEST_TITLE], text_of(content))


class ServiceLink:
    """One event loop's; connects at the first call. writing: as `reading`, perhaps with another API key."""

    def __init__(self, reading: ChannelSettings, writing: ChannelSettings) -> None:
        self.address = reading.address
        self._reading, self._writing = reading, writing
        self._channels: dict[ChannelSettings, grpc.aio.Channel] = {}

    async def describe(self) -> dict[str, Any]:
        """What answers at the address; raises a RetrievalError."""
        stub = models_pb2_grpc.ModelsStub(self._channel(self._reading))
        found = await self._call(stub.Describe, models_pb2.DescribeRequest(), PROBE_S)
        return {"version": found.service_version, "model_id": found.model_id}

    async def knowledge_bases(self) -> list[dict[str, Any]]:
        """All, by name, with how much each holds; raises a RetrievalError."""
        stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(self._channel(self._reading))
        listed = await self._call(stub.ListKnowledgeBases, bases.ListKnowledgeBasesRequest(), CALL_S)

        async def described(base: bases.KnowledgeBase) -> dict[str, Any]:
            told: dict[str, Any] = {
                "name": base.name, "description": base.description, "state": _STATES.get(base.state, "unknown"),
                "problem": base.problem, "documents": None, "references": None,
            }  # fmt: skip
            if base.state == bases.KNOWLEDGE_BASE_STATE_READY:
                request = bases.GetStatisticsRequest(name=base.name)
                counts = await self._call(stub.GetStatistics, request, CALL_S)
                told |= {"documents": counts.document_count, "references": counts.reference_count}
            return told

        return list(await asyncio.gather(*(described(base) for base in listed.knowledge_bases)))

    async def create(self, name: str, description: str) -> None:
        """Make an empty knowledge base; raises a RetrievalError."""
        stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(self._channel(self._writing))
        request = bases.CreateKnowledgeBaseRequest(name=name, description=description)
        await self._call(stub.CreateKnowledgeBase, request, CALL_S, self._writing)

    async def documents(self, knowledge_base: str, page_token: str = "", count: int = 20) -> dict[str, Any]:
        """A page of documents by key, and where the next one begins ("" on the last); raises a RetrievalError."""
        stub = ingestion_pb2_grpc.IngestionStub(self._channel(self._reading))
        request = ingestion.ListDocumentsRequest(
            knowledge_base=knowledge_base, page_token=page_token, count=count
        )
        found = await self._call(stub.ListDocuments, request, CALL_S)

        async def described(listed: ingestion.DocumentVersion) -> dict[str, Any]:
            wanted = ingestion.GetDocumentRequest(
                knowledge_base=knowledge_base, document_key=listed.document_key
            )
            document = await self._call(stub.GetDocument, wanted, CALL_S)
            return {
                "key": document.document_key,
                "title": document.title,
                "references": len(document.references),
            }

        data = await asyncio.gather(*(described(listed) for listed in found.documents))
        return {"data": list(data), "next": found.next_page_token}

    async def delete_document(self, knowledge_base: str, key: str) -> int:
        """Remove a document; returns how many were there. Raises a RetrievalError."""
        stub = ingestion_pb2_grpc.IngestionStub(self._channel(self._writing))
        request = ingestion.DeleteRequest(knowledge_base=knowledge_base, document_keys=[key])
        answer = await self._call(stub.Delete, request, CALL_S, self._writing)
        return int(answer.documents_deleted)

    async def ingest(
        self, knowledge_base: str, document: OwnDocument
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Write one document; yields how far it is, and at the end what became of it.

        What the service calls retryable is retried, `ATTEMPTS` times in all, unless that would take long. Raises a
        RetrievalError, also for a document that was refused.
        """
        for attempt in range(1, ATTEMPTS + 1):
            async with contextlib.aclosing(self._write(knowledge_base, document)) as steps:
                failed: RetrievalError | None = None
                try:
                    async for step in steps:
                        yield step
                except RetrievalError as error:
                    failed = error
            if failed is None:
                return
            pause_s = failed.retry_after_s
            if attempt == ATTEMPTS or pause_s is None or pause_s > LONGEST_PAUSE_S:
                raise failed
            await asyncio.sleep(pause_s)

    async def _write(
        self, knowledge_base: str, document: OwnDocument
    ) -> AsyncGenerator[dict[str, Any], None]:
        """One attempt."""
        stub = ingestion_pb2_grpc.IngestionStub(self._channel(self._writing))
        start = ingestion.IngestStart(knowledge_base=knowledge_base, create_if_missing=True)
        sent = ingestion.Document(key=document.key, title=document.title, text=document.text)
        item = ingestion.IngestItem(sequence=1, document=sent)
        call = stub.Ingest(
            iter([ingestion.IngestRequest(start=start), ingestion.IngestRequest(item=item)]),
            timeout=INGEST_S, metadata=self._writing.metadata,
        )  # fmt: skip
        try:
            with named_errors(self.address, INGEST_S):
                async for response in call:
                    kind = response.WhichOneof("message")
                    if kind == "progress":
                        yield {"state": "writing", "references": response.progress.references_written}
                    elif kind == "acknowledged":
                        done = response.acknowledged
                        outcome = _OUTCOMES.get(done.outcome, "stored")
                        yield {"state": "done", "outcome": outcome, "references": done.reference_count}
                        return
                    elif kind == "failed":
                        reason, help, retry_after_s = status_details(response.failed.status)
                        raise RetrievalError(
                            response.failed.status.message,
                            reason=reason,
                            help=help,
                            retry_after_s=retry_after_s,
                        )
        finally:
            call.cancel()
        raise RetrievalError(
            f"{self.address} ended the call without an answer for {document.key}: add it again"
        )

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, settings: ChannelSettings) -> grpc.aio.Channel:
        """Opened at its first use, which is in the event loop."""
        if settings not in self._channels:
            self._channels[settings] = open_async_channel(settings)
        return self._channels[settings]

    async def _call(
        self, method: Any, request: Any, timeout_s: float, settings: ChannelSettings | None = None
    ) -> Any:
        with named_errors(self.address, timeout_s):
            return await method(request, timeout=timeout_s, metadata=(settings or self._reading).metadata)


def add_document(channel: ChannelSettings, knowledge_base: str, document: OwnDocument) -> str:
    """Write a document, replacing one of the same key; returns the outcome: `ready: 3 memories of notes.md in default`.

    The knowledge base is made if there is none of that name. Ctrl-C ends the call. Not for a thread with a running
    event loop. Raises a RetrievalError.
    """

    async def write() -> dict[str, Any]:
        link = ServiceLink(channel, channel)
        try:
            *_, last = [step async for step in link.ingest(knowledge_base, document)]
        finally:
            await link.close()
        return last

    last = asyncio.run(write())
    if last["state"] == "failed":
        raise RetrievalError(f"{document.key}: {last['message']}", reason=last["reason"].upper())
    number, unchanged = last["references"], last["outcome"] == "unchanged"
    memories = f"{number} {'memory' if number == 1 else 'memories'}"
    return f"ready: {memories} of {document.key} in {knowledge_base}{', nothing new' if unchanged else ''}"
