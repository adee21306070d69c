"""Explicit memories as bytes: codecs, their tables, payloads. Torch-free; `faiss` and `fit` need FAISS.

In: keys and values of a reference (`ExplicitMemory`). Out: the bytes that are stored and sent, and back.
"""

from memory_model.codec.codec import ExactCodec, MemoryCodec, ProductCodec, ProductTables
from memory_model.codec.payload import ExplicitMemory, Identity, MemoryFormat

__all__ = [
    "ExactCodec", "ExplicitMemory", "Identity", "MemoryCodec", "MemoryFormat", "ProductCodec", "ProductTables",
]  # fmt: skip
