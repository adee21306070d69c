"""One trace from the client's call through the service into the store, seen by a collector over OTLP."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.instrumentation.grpc import client_interceptor
from opentelemetry.instrumentation.grpc.grpcext import intercept_channel
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider

from testing.encoders import HashEncoder
from tests.memory_service.running import Client, document, running


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.spans += [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


def test_the_clients_span_holds_the_services(tmp_path: Path) -> None:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    tracer = TracerProvider()
    try:
        settings = {"store": f"file://{tmp_path}/s", "traces_endpoint": f"http://127.0.0.1:{port}"}
        with running(tmp_path, HashEncoder(), **settings) as (plain, _):
            client = Client(intercept_channel(plain.channel, client_interceptor(tracer)))
            client.ingest("kb", document("a", "A."))
            with tracer.get_tracer("test").start_as_current_span("question") as asked:
                client.hits("kb", "A.")
    finally:
        server.stop(1).wait()
    trace_id = asked.get_span_context().trace_id.to_bytes(16, "big")
    spans = {span.name: span for span in collector.spans if span.trace_id == trace_id}
    call = spans["/memory.v1.Retrieval/Retrieve"]
    assert call.parent_span_id not in (b"", asked.get_span_context().span_id.to_bytes(8, "big"))
    assert {attribute.key for attribute in call.attributes} >= {"rpc.service", "rpc.method"}
    assert {span.name for span in collector.spans} >= {"/memory.v1.Ingestion/Ingest"}
