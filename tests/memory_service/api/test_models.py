import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from memory_service.api.interceptors import SERVICES
from protos.memory.v1 import models_pb2
from tests.memory_service.encoders import DIMENSION, PAYLOAD_BYTES, HashEncoder
from tests.memory_service.running import Client, refused, running


@pytest.fixture(scope="module")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "decoder.onnx").write_bytes(np.random.default_rng(0).bytes((2 << 20) + 5))
    (folder / "manifest.json").write_text(json.dumps({"files": {"decoder.onnx": {}}}))
    (folder / "private.txt").write_text("not in the manifest")
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, bundle_folder: Path) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("store"), HashEncoder(), bundle=bundle_folder) as (client, _):
        yield client


def test_describe_tells_what_a_client_must_match(client: Client) -> None:
    identity = HashEncoder().description.identity
    reply = client.models.Describe(models_pb2.DescribeRequest(), timeout=60)
    assert (reply.model_id, reply.codec_id) == (identity.model_id, identity.codec_id)
    assert (reply.memory_format_id, reply.embedder_id) == (identity.memory_format_id, identity.embedder_id)
    assert (reply.dimension, reply.memories_per_chunk, reply.reference_tokens) == (DIMENSION, 5, 128)
    assert json.loads(reply.model_config_json) == {"name": "test"}
    assert (reply.limits.queries, reply.limits.k, reply.limits.hits) == (256, 100, 1280)
    assert (reply.limits.request_bytes, reply.limits.payload_bytes) == (32 << 20, PAYLOAD_BYTES + 16)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (models_pb2.FetchBundleRequest(file="private.txt"), "BUNDLE_FILE_NOT_FOUND"),
        (models_pb2.FetchBundleRequest(file="../../etc/passwd"), "BUNDLE_FILE_NOT_FOUND"),
        (models_pb2.FetchBundleRequest(file="decoder.onnx", offset=1 << 40), "INVALID_ARGUMENT"),
    ],
)
def test_only_the_manifests_files_served(client: Client, request_: models_pb2.FetchBundleRequest, reason: str) -> None:
    assert refused(lambda: list(client.models.FetchBundle(request_, timeout=60))).reason == reason


def test_health_answers_for_every_service_and_reflection_lists_them(client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", *SERVICES):
        reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (reply,) = stub.ServerReflectionInfo(iter([request]), timeout=60)
    names = {service.name for service in reply.list_services_response.service}
    assert set(SERVICES) <= names
