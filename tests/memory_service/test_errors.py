from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from memory_model import errors as model_errors
from memory_service import errors


def leaves(root: type[Exception]) -> list[type[Exception]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in leaves(child))]


def test_every_error_of_the_service_has_a_reason_of_its_own_and_a_place_in_the_tree() -> None:
    ours = [leaf for leaf in leaves(errors.ServiceError) if leaf.__module__ == errors.__name__]
    reasons = [leaf.reason for leaf in ours]  # type: ignore[attr-defined]
    assert len(set(reasons)) == len(reasons)
    for leaf in ours:
        assert leaf.__name__ in (errors.__doc__ or ""), f"{leaf.__name__} is missing in the tree"
        assert leaf.__doc__


@pytest.mark.parametrize("leaf", leaves(model_errors.IdentityMismatch))
def test_every_mismatch_is_a_failed_precondition_that_names_both(
    leaf: type[model_errors.IdentityMismatch],
) -> None:
    status = errors.to_status(leaf("a" * 64, "b" * 64, "do this"))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert info.reason.endswith("_MISMATCH")
    assert dict(info.metadata) == {"found": "a" * 64, "expected": "b" * 64}


def test_a_bug_tells_nothing_of_itself() -> None:
    code, reason, message, metadata = errors.described(RuntimeError("secret"))
    assert (code, reason, metadata) == (grpc.StatusCode.INTERNAL, "INTERNAL", {})
    assert "secret" not in message


def test_long_messages_fit_into_headers() -> None:
    error = errors.BadRequest("x" * 10**6, field="f", value="y" * 10**6)
    assert errors.to_status(error).ByteSize() < 4096


def test_retry_information_goes_with_what_can_be_retried() -> None:
    details = errors.to_status(errors.Overloaded("full")).details
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in details)
    assert retry.retry_delay.ToTimedelta().total_seconds() == pytest.approx(0.1)
