"""Structured logs on stderr: one event a line, JSON for machines, coloured text on a terminal."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog


def configure_logs(level: str = "info") -> None:
    """Sets up structlog for the process. Tracebacks go without values of variables: people's documents and keys."""
    renderers: list[structlog.typing.Processor] = [
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
        structlog.processors.JSONRenderer(),
    ]
    if sys.stderr.isatty():
        renderers = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    for name in ("grpc", "asyncio"):
        library = logging.getLogger(name)
        library.handlers, library.propagate = [_OfLibraries()], False


class _OfLibraries(logging.Handler):
    """What gRPC and asyncio log, as our events. That a call ended before its answer was sent is no error."""

    def emit(self, record: logging.LogRecord) -> None:
        from grpc._cython.cygrpc import ExecuteBatchError  # of a failed answer; grpc.aio has no name for it

        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (asyncio.CancelledError, ExecuteBatchError)):
            logger().info("call_gone", library=record.name, message=record.getMessage())
        else:
            said = {"library": record.name, "message": record.getMessage(), "exc_info": error}
            logger().log(record.levelno, "library_says", **said)


def logger() -> structlog.typing.FilteringBoundLogger:
    """The process's logger."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return bound
