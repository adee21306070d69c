"""OpenTelemetry traces by its gRPC instrumentation: a span for each call. Without an endpoint nothing is imported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import grpc

from memory_model.errors import InvalidInput
from memory_service import __version__


@contextlib.contextmanager
def traces(
    endpoint: str, traced: Callable[[grpc.HandlerCallDetails], bool]
) -> Iterator[list[grpc.aio.ServerInterceptor]]:
    """The outermost interceptor of the server: a span for each call that is traced; none without an endpoint.

    endpoint: http[s]://host:port of a collector that speaks OTLP over gRPC. Sends what waits at the end. Raises
    InvalidInput.
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
