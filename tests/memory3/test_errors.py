"""Errors go from one process to another whole, whatever they were made with."""

import copy
import pickle

import grpc
import pytest

from edge_client.errors import ContextFull, RetrievalError
from memory3.errors import CodecMismatch, InvalidInput, Memory3Error, MissingFile, ModelMismatch
from memory_service.client.connection import RemoteError
from memory_service.errors import BadRequest, RateExceeded


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("wrong"),
        MissingFile("no bundle at x"),
        ModelMismatch("a" * 20, "b" * 20, "export it again"),
        CodecMismatch("a" * 20, "b" * 20, "fetch it again", subject="the pack has"),
        ContextFull("too long", help="shorten it"),
        RetrievalError("gone", reason="UNREACHABLE", unavailable=True, retry_after_s=2.0),
        RemoteError("refused", grpc.StatusCode.UNAVAILABLE, "STORE_FULL", 60),
        BadRequest("wrong", field="documents", key="a"),
        RateExceeded("too often", retry_after_s=0.5, tenant="a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_behind_a_process_and_as_a_copy(error: Memory3Error) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), other.reason, vars(other)) == (str(error), error.reason, vars(error))
