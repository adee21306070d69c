"""Structured logs on stderr (an event a line, JSON for machines, coloured text on a terminal), and traces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

import grpc
import structlog

from memory3.errors import InvalidInput
from memory_service import __version__


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
            fields = {"library": record.name, "message": record.getMessage(), "exc_info": error}
            logger().log(record.levelno, "library_says", **fields)


def logger() -> structlog.typing.FilteringBoundLogger:
    """The process's logger."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return bound


@contextlib.contextmanager
def traces(
    endpoint: str, traced: Callable[[grpc.HandlerCallDetails], bool]
) -> Iterator[list[grpc.aio.ServerInterceptor]]:
    """The outermost interceptor of the server: a span for each call that is traced; none without an endpoint.

    endpoint: http[s]://host:port of a collector that speaks OTLP over gRPC; without one nothing is imported. Sends what
    waits at the end. Raises InvalidInput.
    """
    if not endpoint:
        yield []
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.grpc import aio_server_interceptor
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidInput("traces_endpoint needs OpenTelemetry: pip install 'memory3-service[tracing]'") from error
    resource = Resource.create({"service.name": "memory-service", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https:"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    spans = aio_server_interceptor(provider, traced)
    # It expects streaming handlers to be generators. Ours are coroutines that write, and are awaited as unary ones.
    spans._intercept_aio_server_stream = spans._intercept_aio_server_unary
    yield [spans]
    provider.shutdown()
