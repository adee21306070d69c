"""OpenTelemetry traces: a span for each call, within the client's own, and one for each question to the store.

Without an endpoint nothing is imported and nothing is measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from memory_model.errors import InvalidInput
from memory_service import __version__


class Tracing:
    """Where spans go. Thread-safe; the current span travels with the context (see carrying.py)."""

    def __init__(self, endpoint: str) -> None:
        """endpoint: http[s]://host:port of a collector that speaks OTLP over gRPC; empty: none. Raises InvalidInput."""
        self._provider: Any = None
        self._tracer: Any = None
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
        self._tracer = self._provider.get_tracer("memory_service", __version__)

    @property
    def on(self) -> bool:
        """Whether spans are sent anywhere."""
        return self._tracer is not None

    @contextlib.contextmanager
    def call(
        self, method: str, request_id: str, traceparent: str | None, context: grpc.aio.ServicerContext
    ) -> Iterator[None]:
        """The span of one call; traceparent: the client's (W3C Trace Context)."""
        if self._tracer is None:
            yield
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent} if traceparent else {})
        service, _, name = method.lstrip("/").partition("/")
        attributes = {
            "rpc.system": "grpc", "rpc.service": service, "rpc.method": name, "request_id": request_id,
        }  # fmt: skip
        with self._tracer.start_as_current_span(
            method.lstrip("/"), context=parent, kind=SpanKind.SERVER, attributes=attributes,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield
            finally:
                code = context.code()
                if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK:
                    span.set_attribute("rpc.grpc.status_code", code.value[0])
                    span.set_status(Status(StatusCode.ERROR, code.name))

    @contextlib.contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[None]:
        """A span within the current one."""
        if self._tracer is None:
            yield
            return
        with self._tracer.start_as_current_span(name, attributes=attributes):
            yield

    def close(self) -> None:
        """Sends what waits."""
        if self._provider is not None:
            self._provider.shutdown()
