from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from edge_client import errors
from edge_client.wire.channel import BY_STATUS, DETAILS_KEY, UNAVAILABLE, call_error


class Failed(grpc.RpcError):
    """A call's error, as threads and asyncio have it."""

    def __init__(self, code: grpc.StatusCode, said: str = "because", details: Sequence[Any] = ()) -> None:
        self._code, self._said = code, said
        status = status_pb2.Status(code=code.value[0], message=said)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        self.raw = status.SerializeToString() if details else None

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._said

    def trailing_metadata(self) -> Any:
        return () if self.raw is None else ((DETAILS_KEY, self.raw),)


def test_every_status_has_a_reason_that_the_error_tree_lists() -> None:
    assert set(BY_STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    for code, reason in BY_STATUS.items():
        error = call_error(Failed(code), "host:1", 2.0)
        assert isinstance(error, errors.RetrievalError)
        assert (error.reason, error.unavailable) == (reason, code in UNAVAILABLE)
        assert reason in (errors.__doc__ or "")
        assert "host:1" in str(error)


def test_reason_help_and_pause_come_from_the_details() -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    link = error_details_pb2.Help.Link(description="read this", url="https://docs.example")
    details = [
        error_details_pb2.ErrorInfo(reason="OVERLOADED", domain="memory.v1"), error_details_pb2.Help(links=[link]),
        retry,
    ]  # fmt: skip
    error = call_error(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", details), "host:1", 2.0)
    assert error.unavailable
    assert (error.reason, error.retry_after_s) == ("OVERLOADED", 1.5)
    assert error.help == "read this https://docs.example"
    assert str(error) == "the service at host:1 refused (OVERLOADED): full: read this https://docs.example"
