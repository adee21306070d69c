"""The cloud half: ingestion, storage and retrieval of explicit memories behind gRPC. Start reading at `flow.py`."""

__version__ = "0.1.0"
