"""What is logged of an error: where it happened, and nothing of what people wrote or who they are."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

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
