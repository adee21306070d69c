"""Errors: their reasons, and what is logged of one: where it happened, nothing of what people wrote or who they are."""

import logging
import sys
from collections.abc import Iterator

import grpc
import pytest

from memory_service import errors
from memory_service.stores.store import MOST_NAMED, unknown_knowledge_base
from memory_service.telemetry.logs import configure_logs, logger
from tests.memory_service.reasons import REASONS

RETRYABLE = {
    "KNOWLEDGE_BASE_CHANGED",
    "OVERLOADED",
    "RATE_EXCEEDED",
    "SHUTTING_DOWN",
    "STORE_FULL",
    "STORE_UNAVAILABLE",
}


def leaves(root: type[Exception]) -> list[type[Exception]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in leaves(child))]


def test_every_error_has_a_reason_of_its_own_and_retryable_ones_say_when() -> None:
    ours = [leaf for leaf in leaves(errors.ServiceError) if leaf.__module__ == errors.__name__]
    assert sorted(leaf.reason for leaf in ours) == REASONS  # type: ignore[attr-defined]
    for leaf in ours[1:]:
        error = leaf("m", retry_after_s=2.0) if leaf is errors.RateExceeded else leaf("m")
        kinds = [detail.TypeName() for detail in errors.to_status(error).details]
        assert errors.retryable(error) is ("google.rpc.RetryInfo" in kinds) is (leaf.reason in RETRYABLE), leaf  # type: ignore[attr-defined]
    assert not errors.retryable(RuntimeError("a bug"))


def test_a_bug_tells_nothing_of_itself_and_long_messages_fit_into_headers() -> None:
    code, reason, message, metadata = errors.described(RuntimeError("secret"))
    assert (code, reason, metadata) == (grpc.StatusCode.INTERNAL, "INTERNAL", {})
    assert "secret" not in message
    error = errors.BadRequest("x" * 10**6, field="f", value="y" * 10**6)
    assert errors.to_status(error).ByteSize() < 4096


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    libraries = [logging.getLogger(name) for name in ("grpc", "asyncio")]
    before = [(library.handlers, library.propagate) for library in libraries]
    yield
    for library, (handlers, propagate) in zip(libraries, before, strict=True):
        library.handlers, library.propagate = handlers, propagate


def fails(document: str, key: str) -> None:
    raise RuntimeError("the cause")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_logged_error_names_the_place_and_shows_no_values(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    configure_logs("info")
    try:
        fails(document="my diary".upper(), key="m3_0123_key".upper())  # a console quotes the source
    except RuntimeError as error:
        logger().error("call", exc_info=error)
    said = capsys.readouterr().err
    assert all(part in said for part in ("the cause", "fails", "test_errors.py"))
    assert not any(secret in said for secret in ("MY DIARY", "M3_0123_KEY"))


@pytest.mark.parametrize(("there", "end"), [(MOST_NAMED, f"base{MOST_NAMED - 1:02}"), (MOST_NAMED + 3, " and 3 more")])
def test_an_unknown_knowledge_base_lists_others_and_counts_those_left_out(there: int, end: str) -> None:
    error = unknown_knowledge_base("bsae", [f"base{n:02}" for n in range(there)])
    assert "there are: base00, base01" in str(error)
    assert str(error).endswith(end)
