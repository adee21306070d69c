"""The model that keeps its knowledge outside: shapes, tokenizer, embedder, explicit memory, codec, bundle.

The top level is torch-free; `nn`, `models`, `train`, `eval` and `export` need the `train` or `service` extra.
"""

__version__ = "0.1.0"
"""Of everything in the repository; one release, one version."""
