"""The service: ingestion, storage and retrieval of explicit memories. Start at `write/pipeline.py`."""

from memory3 import __version__

__all__ = ["__version__"]
