"""What is logged of an error: where it happened, and nothing of what people wrote or who they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog
from grpc._cython.cygrpc import ExecuteBatchError

from memory_service.ops.logs import configure_logs, logger


def fails(document: str, key: str) -> None:
    raise RuntimeError("the cause")


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_logged_error_names_the_place_and_shows_no_values(
    style: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = structlog.get_config()
    try:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: style == "console")
        configure_logs("info")
        try:
            fails(document="my diary".upper(), key="m3_0123_key".upper())  # a console quotes the source
        except RuntimeError as error:
            logger().error("call_failed", exc_info=error)
        said = capsys.readouterr().err
    finally:
        structlog.configure(**before)
    assert "the cause" in said
    assert "fails" in said
    assert "test_logs.py" in said
    assert "MY DIARY" not in said
    assert "M3_0123_KEY" not in said


@contextlib.contextmanager
def json_logs() -> Iterator[None]:
    before, libraries = structlog.get_config(), [logging.getLogger(name) for name in ("grpc", "asyncio")]
    handlers = [(library.handlers, library.propagate) for library in libraries]
    configure_logs("info")
    try:
        yield
    finally:
        structlog.configure(**before)
        for library, (held, propagate) in zip(libraries, handlers, strict=True):
            library.handlers, library.propagate = held, propagate


def test_what_libraries_log_is_lines_of_ours_and_a_call_that_is_gone_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with json_logs():
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
        ("call_gone", "info"),
        ("call_gone", "info"),
        ("library_says", "error"),
        ("library_says", "warning"),
    ]
    assert events[0]["message"] == "of method /memory.v1.Retrieval/Retrieve"
    assert "the cause" in json.dumps(events[2]["exception"])
