"""Threads that know for whom they work: caller, request id and trace travel with what they are given."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CarryingExecutor(ThreadPoolExecutor):
    """A pool whose work sees the context variables of whoever submitted it, also through run_in_executor."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """As ThreadPoolExecutor."""
        context = copy_context()
        return super().submit(lambda: context.run(fn, *args, **kwargs))
