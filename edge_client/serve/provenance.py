"""What an answer read and what it cost, as JSON: the fields `memory` and `timings` beside OpenAI's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edge_client.events import Finished, Recalled
from edge_client.recall.recaller import MemoryRead


def chunk_json(recalled: Recalled, *, texts: bool) -> dict[str, Any]:
    """One chunk's memories. A late chunk is told twice: the second one, of the same number, counts."""
    found = recalled.recall
    return {
        "chunk": recalled.chunk,
        "generated": recalled.generated,
        "position": recalled.position,
        "state": recalled.state,
        "error": found.error,
        "service_error": found.service_error,
        "kept": recalled.kept,
        "query": found.query,
        "read": [_memory_json(memory, texts=texts) for memory in found.read],
        "times": {name: round(value, 3) for name, value in asdict(found.times).items()},
        "blocked_ms": round(recalled.blocked.total_ms, 3),
    }


def _memory_json(memory: MemoryRead, *, texts: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "memory_id": f"{memory.memory_id:016x}",
        "document_key": memory.document_key,
        "title": memory.title,
        "chunk_number": memory.chunk_number,
        "score": round(memory.score, 4),
        "held": memory.held,
        "refused": memory.refused,
    }
    if memory.knowledge_base:
        told["knowledge_base"] = memory.knowledge_base
    return {**told, "text": memory.text} if texts else told


def timings_json(finished: Finished) -> dict[str, Any]:
    """The answer's statistics."""
    s = finished.statistics
    return {
        "first_token_ms": round(s.first_token_ms, 3),
        "tokens_per_s": round(s.tokens_per_s, 3),
        "decoder_ms": round(s.decoder_ms, 3),
        "overhead_ms": round(s.overhead_ms, 3),
        "recall_ms": round(s.recall_ms, 3),
        "blocked_ms_per_chunk": round(s.blocked_ms_per_chunk, 3),
        "recalls": s.recalls,
        "states": dict(s.states),
    }


def usage_json(finished: Finished) -> dict[str, Any]:
    """Token counts; the cached ones are those whose key-values were still there."""
    s = finished.statistics
    return {
        "prompt_tokens": s.prompt_tokens,
        "completion_tokens": s.generated_tokens,
        "total_tokens": s.prompt_tokens + s.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": s.reused_tokens},
    }


def finish_reason(finished: Finished) -> str:
    """In OpenAI's words."""
    return "length" if finished.reason in ("length", "context") else "stop"
