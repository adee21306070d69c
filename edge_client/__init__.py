"""The device's half: decodes with ONNX Runtime, asks the service for memories, puts them into the slots."""

from edge_client.errors import (
    ContextFull,
    DamagedMemory,
    DeadlineExceeded,
    DecoderBroken,
    EdgeError,
    IncompatibleService,
    RequestRefused,
    RetrievalError,
    ServiceUnavailable,
)
from edge_client.recall import MemoryRead, Recall, RecallTimes
from edge_client.session import EdgeModel, Event, Finished, Recalled, Statistics, Token
from edge_client.settings import EdgeSettings

__all__ = [
    "ContextFull",
    "DamagedMemory",
    "DeadlineExceeded",
    "DecoderBroken",
    "EdgeError",
    "EdgeModel",
    "EdgeSettings",
    "Event",
    "Finished",
    "IncompatibleService",
    "MemoryRead",
    "Recall",
    "RecallTimes",
    "Recalled",
    "RequestRefused",
    "RetrievalError",
    "ServiceUnavailable",
    "Statistics",
    "Token",
]
