"""The cloud half: ingestion, storage and retrieval of explicit memories. Start at `write/pipeline.py`."""

__version__ = "0.1.0"
