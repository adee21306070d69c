"""The service as page and terminal need it, over gRPC: its knowledge bases, and documents written into one.

Recalling does not come this way: `edge_client.recall.recaller` has its own connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import grpc.aio

from edge_client.errors import RetrievalError, ServiceUnavailable
from edge_client.wire.channel import ChannelSettings, open_async_channel
from edge_client.wire.documents import OwnDocument
from edge_client.wire.errors import call_error, status_details
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

    async def delete_document(self, knowledge_base: str, key: str) -> int:
        """Remove a document; returns how many were there. Raises a RetrievalError."""
        stub = ingestion_pb2_grpc.IngestionStub(self._channel(self._writing))
        request = ingestion.DeleteRequest(knowledge_base=knowledge_base, document_keys=[key])
        answer = await self._call(stub.Delete, request, CALL_S, self._writing)
        return int(answer.documents_deleted)

    async def ingest(
        self, knowledge_base: str, document: OwnDocument
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Write one document; yields how far it is, and at the end what became of it. Raises a RetrievalError.

        What the service calls retryable is retried, `ATTEMPTS` times in all, unless that would take long.
        """
        for attempt in range(1, ATTEMPTS + 1):
            failed: dict[str, Any] | RetrievalError | None = None
            retry_after_s: float | None = None
            try:
                async with contextlib.aclosing(self._write(knowledge_base, document)) as steps:
                    async for step in steps:
                        if step["state"] == "failed":
                            failed, retry_after_s = step, step.pop("retry_after_s")
                        else:
                            yield step
            except RetrievalError as error:
                failed, retry_after_s = error, error.retry_after_s
            final = attempt == ATTEMPTS or retry_after_s is None or retry_after_s > LONGEST_PAUSE_S
            if failed is None or final:
                break
            assert retry_after_s is not None, "else it is final"
            await asyncio.sleep(retry_after_s)
        if isinstance(failed, RetrievalError):
            raise failed
        if failed is not None:
            yield failed

    async def _write(
        self, knowledge_base: str, document: OwnDocument
    ) -> AsyncGenerator[dict[str, Any], None]:
        """One attempt; `failed` has retry_after_s, None where the failure is final."""
        stub = ingestion_pb2_grpc.IngestionStub(self._channel(self._writing))
        start = ingestion.IngestStart(knowledge_base=knowledge_base, create_if_missing=True)
        sent = ingestion.Document(key=document.key, title=document.title, text=document.text)
        item = ingestion.IngestItem(sequence=1, document=sent)
        call = stub.Ingest(
            iter([ingestion.IngestRequest(start=start), ingestion.IngestRequest(item=item)]),
            timeout=INGEST_S, metadata=self._writing.metadata,
        )  # fmt: skip
        try:
            async for response in call:
                kind = response.WhichOneof("message")
                if kind == "progress":
                    yield {"state": "writing", "references": response.progress.references_written}
                elif kind == "acknowledged":
                    done = response.acknowledged
                    yield {
                        "state": "done", "outcome": _OUTCOMES.get(done.outcome, "stored"),
                        "references": done.reference_count,
                    }  # fmt: skip
                elif kind == "failed":
                    failed = response.failed
                    yield {
                        "state": "failed", "reason": failed.reason.lower(), "message": failed.message,
                        "retry_after_s": status_details(failed.status)[2] if failed.retryable else None,
                    }  # fmt: skip
        except grpc.RpcError as error:
            raise call_error(error, self.address, INGEST_S) from error
        finally:
            call.cancel()

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
        try:
            return await method(request, timeout=timeout_s, metadata=(settings or self._reading).metadata)
        except grpc.RpcError as error:
            raise call_error(error, self.address, timeout_s) from error
        except asyncio.CancelledError:
            raise
        except grpc.aio.UsageError as error:  # closed under the call
            raise ServiceUnavailable(f"the connection to {self.address} was closed here") from error
