"""Explicit memories as bytes: codecs, their tables, payloads. Free of Torch and FAISS; `memory_model.codec` fits them.

In: keys and values of a reference (`ExplicitMemory`). Out: the bytes that are stored and sent, and back.
"""
