"""What is logged of an error: where it happened, and nothing of what people wrote or who they are."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from memory_service.ops.logs import configure_logs, logger


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
    assert all(part in said for part in ("the cause", "fails", "test_logs.py"))
    assert not any(secret in said for secret in ("MY DIARY", "M3_0123_KEY"))


def test_what_libraries_log_is_lines_of_ours_and_a_call_that_is_gone_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("info")
    for name, error in (
        ("grpc._cython.cygrpc", ExecuteBatchError("Failed grpc_call_start_batch")),
        ("asyncio", asyncio.CancelledError()),
        ("asyncio", RuntimeError("the cause")),
    ):
        try:
            raise error
        except BaseException:
            logging.getLogger(name).exception("of method %s", "/memory.v1.Retrieval/Retrieve")
    logging.getLogger("grpc._common").warning("no exception here")
    said = capsys.readouterr().err
    assert "Traceback" not in said
    events = [json.loads(line) for line in said.splitlines()]
    assert [(event["event"], event["level"]) for event in events] == [
        ("call_gone", "info"), ("call_gone", "info"), ("library_says", "error"), ("library_says", "warning"),
    ]  # fmt: skip
    assert events[0]["message"] == "of method /memory.v1.Retrieval/Retrieve"
    assert "the cause" in json.dumps(events[2]["exception"])
