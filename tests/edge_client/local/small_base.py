"""A knowledge base of the device with few dimensions, and random vectors for it."""

from pathlib import Path

import numpy as np

from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.writer import Written
from memory3.codec.payload import Identity
from memory3.files.knowledge_file import Head

DIMENSION = 16
HEAD = Head("notes", "11" * 32, "22" * 32, "33" * 32, "44" * 32, DIMENSION)
IDENTITY = Identity(HEAD.model_id, HEAD.codec_id, HEAD.memory_format_id)


def vectors(n: int, seed: int = 0, dimension: int = DIMENSION) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, dimension)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def written(rows: np.ndarray) -> Written:
    return Written([f"payload of {row[0]}".encode() for row in rows], rows)


def opened(path: Path) -> LocalKnowledgeBase:
    return LocalKnowledgeBase.open(path, IDENTITY, HEAD.embedder_id)
