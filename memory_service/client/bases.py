"""Knowledge bases as commands create and delete them.

gRPC repeats a call that was answered by UNAVAILABLE, and the second attempt may find done what the first one began. So
a command looks before it changes anything: what was not there then, or was, is its own doing.
"""

from __future__ import annotations

import grpc

from protos.memory.v1 import knowledge_bases_pb2 as pb
from protos.memory.v1.knowledge_bases_pb2_grpc import KnowledgeBasesStub

_LOOK_TIMEOUT_S, _CREATE_TIMEOUT_S, _DELETE_TIMEOUT_S = 30, 60, 120


def create(bases: KnowledgeBasesStub, name: str, description: str = "") -> None:
    """A new, empty one; raises grpc.RpcError, also where there is one of this name."""
    request = pb.CreateKnowledgeBaseRequest(name=name, description=description)
    there = _is_there(bases, name)
    try:
        bases.CreateKnowledgeBase(request, timeout=_CREATE_TIMEOUT_S)
    except grpc.RpcError as error:
        if there or error.code() != grpc.StatusCode.ALREADY_EXISTS:
            raise


def delete(bases: KnowledgeBasesStub, name: str) -> None:
    """With all that is in it; raises grpc.RpcError, also where there is none of this name."""
    request = pb.DeleteKnowledgeBaseRequest(name=name)
    there = _is_there(bases, name)
    try:
        bases.DeleteKnowledgeBase(request, timeout=_DELETE_TIMEOUT_S)
    except grpc.RpcError as error:
        if not there or error.code() != grpc.StatusCode.NOT_FOUND:
            raise


def _is_there(bases: KnowledgeBasesStub, name: str) -> bool:
    try:
        bases.GetKnowledgeBase(pb.GetKnowledgeBaseRequest(name=name), timeout=_LOOK_TIMEOUT_S)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.NOT_FOUND:
            raise
        return False
    return True
