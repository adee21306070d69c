"""Explicit memories as bytes: codecs, their tables, payloads. Torch-free; `faiss` and `fit` need FAISS.

In: keys and values of a reference (`ExplicitMemory`). Out: the bytes that are stored and sent, and back.
"""
