"""The device's half: decodes with ONNX Runtime, recalls memories from the service, puts them into the slots."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_client.errors import ContextFull, ModelClosed, ProviderError, RetrievalError, SessionBusy, StorageError
    from edge_client.generate.sampling import SamplingOptions
    from edge_client.model import EdgeModel
    from edge_client.recall.outcome import MemoryRead
    from edge_client.recall.policy import RecallMode
    from edge_client.session import ChatSession
    from edge_client.settings import EdgeSettings
    from edge_client.stream import (
        AnswerAttention,
        AnswerStream,
        Contribution,
        Event,
        Finished,
        Recalled,
        Remembered,
        Result,
        Span,
        Statistics,
        Token,
    )
    from edge_client.wire.client import MemoryClient
    from memory3.errors import CorruptFile, IdentityMismatch, InvalidInput, Memory3Error, MissingFile
    from memory3.text.verdict import Verdict

_MODULES = {
    "edge_client.errors": (
        "ContextFull",
        "ModelClosed",
        "ProviderError",
        "RetrievalError",
        "SessionBusy",
        "StorageError",
    ),
    "edge_client.generate.sampling": ("SamplingOptions",),
    "edge_client.model": ("EdgeModel",),
    "edge_client.recall.policy": ("RecallMode",),
    "edge_client.recall.outcome": ("MemoryRead",),
    "edge_client.session": ("ChatSession",),
    "edge_client.settings": ("EdgeSettings",),
    "edge_client.stream": (
        "AnswerAttention",
        "AnswerStream",
        "Contribution",
        "Event",
        "Finished",
        "Recalled",
        "Remembered",
        "Result",
        "Span",
        "Statistics",
        "Token",
    ),
    "edge_client.wire.client": ("MemoryClient",),
    "memory3.errors": ("CorruptFile", "IdentityMismatch", "InvalidInput", "Memory3Error", "MissingFile"),
    "memory3.text.verdict": ("Verdict",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AnswerAttention",
    "AnswerStream",
    "ChatSession",
    "ContextFull",
    "Contribution",
    "CorruptFile",
    "EdgeModel",
    "EdgeSettings",
    "Event",
    "Finished",
    "IdentityMismatch",
    "InvalidInput",
    "Memory3Error",
    "MemoryClient",
    "MemoryRead",
    "MissingFile",
    "ModelClosed",
    "ProviderError",
    "RecallMode",
    "Recalled",
    "Remembered",
    "Result",
    "RetrievalError",
    "SamplingOptions",
    "SessionBusy",
    "Span",
    "Statistics",
    "StorageError",
    "Token",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line can configure gRPC before it is imported."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
