"""GGUF files as base models: header and splits, shape, weights in Hugging Face's layout, tokenizer and chat template.

In: the path of a .gguf file, or of any part of a split one. Out: a `GgufFile`, with the face of a Hugging Face folder.
"""

from memory_model.models.gguf.file import GgufFile

__all__ = ["GgufFile"]
