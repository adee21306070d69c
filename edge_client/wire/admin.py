"""The service's knowledge bases and their documents, as the page lists them. Recalling does not come this way."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from edge_client.wire.channel import ChannelSettings, open_async_channel
from edge_client.wire.errors import named_errors
from protos.memory.v1 import ingestion_pb2 as ingestion
from protos.memory.v1 import ingestion_pb2_grpc, knowledge_bases_pb2_grpc
from protos.memory.v1 import knowledge_bases_pb2 as bases

CALL_S = 3.0
_STATES = {
    bases.KNOWLEDGE_BASE_STATE_READY: "ready",
    bases.KNOWLEDGE_BASE_STATE_DAMAGED: "damaged",
    bases.KNOWLEDGE_BASE_STATE_MISMATCHED: "mismatched",
}


class ServiceLink:
    """One event loop's; connects at the first call. Every call raises a RetrievalError."""

    def __init__(self, settings: ChannelSettings) -> None:
        self._settings = settings
        self._channel: grpc.aio.Channel | None = None

    async def knowledge_bases(self) -> list[dict[str, Any]]:
        """All, by name."""
        stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(self._opened())
        listed = await self._call(stub.ListKnowledgeBases, bases.ListKnowledgeBasesRequest())
        return [
            {"name": base.name, "description": base.description, "state": _STATES.get(base.state, "unknown")}
            for base in listed.knowledge_bases
        ]

    async def documents(self, knowledge_base: str, page_token: str = "", count: int = 20) -> dict[str, Any]:
        """A page of documents by key, and where the next one begins ("" on the last)."""
        stub = ingestion_pb2_grpc.IngestionStub(self._opened())
        request = ingestion.ListDocumentsRequest(knowledge_base=knowledge_base, page_token=page_token, count=count)
        found = await self._call(stub.ListDocuments, request)

        async def described(listed: ingestion.DocumentVersion) -> dict[str, Any]:
            wanted = ingestion.GetDocumentRequest(knowledge_base=knowledge_base, document_key=listed.document_key)
            document = await self._call(stub.GetDocument, wanted)
            return {"key": document.document_key, "title": document.title, "references": len(document.references)}

        data = await asyncio.gather(*(described(listed) for listed in found.documents))
        return {"data": list(data), "next": found.next_page_token}

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()

    def _opened(self) -> grpc.aio.Channel:
        """Opened at its first use, which is in the event loop."""
        if self._channel is None:
            self._channel = open_async_channel(self._settings)
        return self._channel

    async def _call(self, method: Any, request: Any) -> Any:
        with named_errors(self._settings.address, CALL_S):
            return await method(request, timeout=CALL_S, metadata=self._settings.metadata)
