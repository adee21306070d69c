"""/v1/models, /v1/embeddings, /health and /metrics."""

from __future__ import annotations

import base64
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Response

from edge_client.serve.answering import Answering
from edge_client.serve.errors import ApiError
from edge_client.serve.metrics import CONTENT_TYPE
from edge_client.serve.requests import EmbeddingRequest
from memory_model.embedder import Embedder


def model_routes(answering: Answering, embedder: Embedder, created: int) -> APIRouter:
    """Routes that say what runs here. embedder: the one that recalling uses."""
    router = APIRouter()
    manifest, config = answering.bundle.manifest, answering.bundle.config
    described = {"id": manifest.name, "object": "model", "created": created, "owned_by": "local"}

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model, and the embedder."""
        second = {"id": embedder.name, "object": "model", "created": created, "owned_by": "local"}
        return {"object": "list", "data": [described, second]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The model by its name."""
        if name == embedder.name:
            return {**described, "id": embedder.name}
        answering.check_model(name)
        return described

    @router.post("/v1/embeddings")
    async def embeddings(body: EmbeddingRequest) -> dict[str, Any]:
        """Vectors of texts, of unit length, as the service's index has them."""
        if body.model not in (None, embedder.name, manifest.name):
            raise ApiError(
                404, f"there is no embedder of that name here, only {embedder.name!r}",
                code="model_not_found", param="model",
            )  # fmt: skip
        if body.dimensions not in (None, embedder.dim):
            raise ApiError(
                400, f"the vectors have {embedder.dim} numbers, not {body.dimensions}",
                code="invalid_value", param="dimensions",
            )  # fmt: skip
        vectors = await anyio.to_thread.run_sync(embedder.embed, body.texts)
        tokens = sum(answering.bundle.tokenizer.count(text) for text in body.texts)
        data = [
            {
                "object": "embedding", "index": number,
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
                if body.encoding_format == "base64" else [float(x) for x in vector],
            }
            for number, vector in enumerate(vectors)
        ]  # fmt: skip
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": embedder.name, "usage": usage}

    @router.get("/health")
    async def health() -> dict[str, Any]:
        """Whether answers are given; does not ask the service, without which they are given too."""
        memory = config.memory
        return {
            "status": "ok",
            "model": {
                "name": manifest.name, "precision": manifest.precision, "capacity": answering.conversations.model(None).decoder.context,
                "chunk_tokens": memory.chunk_tokens, "memories_per_chunk": memory.memories_per_chunk,
            },
            "answers": {"running": answering.turns.running, "waiting": answering.turns.waiting},
        }  # fmt: skip

    @router.get("/metrics")
    async def metrics() -> Response:
        """Counts for Prometheus."""
        return Response(answering.metrics.text(), media_type=CONTENT_TYPE)

    return router
