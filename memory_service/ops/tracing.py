"""OpenTelemetry traces by its gRPC instrumentation: a span for each call. Without an endpoint nothing is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from memory_model.errors import InvalidInput
from memory_service import __version__


class Tracing:
    """Where the spans of this process go; one at a time."""

    def __init__(self, endpoint: str) -> None:
        """endpoint: http[s]://host:port of a collector that speaks OTLP over gRPC; empty: none. Raises InvalidInput."""
        self._provider: Any = None
        if not endpoint:
            return
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise InvalidInput(
                "traces_endpoint needs OpenTelemetry: pip install 'memory3-service[tracing]'"
            ) from error
        resource = Resource.create({"service.name": "memory-service", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https:"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    def interceptors(
        self, traced: Callable[[grpc.HandlerCallDetails], bool]
    ) -> list[grpc.aio.ServerInterceptor]:
        """The outermost interceptor of the server: a span for each call that is traced; none without an endpoint."""
        if self._provider is None:
            return []
        from opentelemetry.instrumentation.grpc import aio_server_interceptor

        spans = aio_server_interceptor(self._provider, traced)
        # It expects streaming handlers to be generators. Ours are coroutines that write, and are awaited as unary ones.
        spans._intercept_aio_server_stream = spans._intercept_aio_server_unary
        return [spans]

    def close(self) -> None:
        """Sends what waits."""
        if self._provider is not None:
            self._provider.shutdown()
