"""What is logged of an error: where it happened, and nothing of what people wrote or who they are."""

from __future__ import annotations

import pytest
import structlog

from memory_service.logs import configure_logs, logger


def fails(document: str, key: str) -> None:
    raise RuntimeError("the cause")


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_logged_error_names_the_place_and_shows_no_values(
    style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    try:
        configure_logs("info", style)
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
