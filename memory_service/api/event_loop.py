"""What a serving process runs on: uvloop where it is installed, Python's own loop elsewhere."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run. uvloop spends less on each wake-up, of which gRPC has several a call."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def keep_what_is_loaded() -> None:
    """For a service that has started: modules, model and indices stay, so looking for garbage among them is waste."""
    gc.collect()
    gc.freeze()
