"""The methods of `memory.v1` as the wire names them. Callers may send any other name, and no two the same."""

from __future__ import annotations

from protos.memory.v1 import ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2, retrieval_pb2

METHODS = frozenset(
    f"/{service.full_name}/{method.name}"
    for file in (ingestion_pb2, knowledge_bases_pb2, models_pb2, operations_pb2, retrieval_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
