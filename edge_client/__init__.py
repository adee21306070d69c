"""The device's half: decodes with ONNX Runtime, recalls memories from the service, puts them into the slots."""

import os

# What gRPC logs about a call that fails, our errors say better; it reads this once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from edge_client.errors import ContextFull, ModelClosed, ProviderError, RetrievalError, SessionBusy, StorageError
from edge_client.generate.sampling import SamplingOptions
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from edge_client.recall.recaller import MemoryRead
from edge_client.session import ChatSession
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerStream, Event, Finished, Recalled, Remembered, Result, Statistics, Token
from edge_client.wire.client import MemoryClient
from memory3.errors import CorruptFile, IdentityMismatch, InvalidInput, Memory3Error, MissingFile

__all__ = [
    "AnswerStream",
    "ChatSession",
    "ContextFull",
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
    "Statistics",
    "StorageError",
    "Token",
]
