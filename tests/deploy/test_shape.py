import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from deploy.bench.answers import decoding
from deploy.bench.answers.answering import AnswerSettings
from deploy.bench.answers.decoding import weight_bytes
from deploy.bench.answers.knowledge import prompts
from deploy.bench.scenario import ScenarioFailed, find_scenario
from edge_client import EdgeModel
from memory3.files.bundle import Bundle
from memory_service.write.model_encoder import ModelEncoder
from tests.edge_client.tiny_bundle import format_of, tiny_bundle, tiny_loaded
from tests.memory_service.running import document, running


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return tiny_bundle(tmp_path_factory.mktemp("bench"))


def test_without_memories_there_is_no_figure(bundle):
    """Nobody listens at the address."""
    settings = AnswerSettings(rounds=1, warm_up=0, prompt_tokens=40, answer_tokens=18)
    with (
        EdgeModel.open(bundle.folder, "127.0.0.1:1", deadline_s=0.5) as model,
        pytest.raises(ScenarioFailed, match="no memories were read, so nothing was measured"),
    ):
        decoding.measure_modes(model, prompts(bundle, 2, 40), settings)


@pytest.fixture
def address(bundle, tmp_path):
    """Of a service whose memories the tiny model wrote."""
    loaded = tiny_loaded()
    encoder = ModelEncoder(loaded, bundle.embedder(), format_of(loaded))
    with running(tmp_path / "store", encoder) as (client, server):
        documents = [document(str(n), f"Code {n * 37}.", title=f"Town {n}") for n in range(12)]
        client.ingest("default", *documents)
        yield f"127.0.0.1:{server.port}"


def test_the_whole_scenario_on_a_tiny_model_gives_the_keys_of_the_targets(bundle, address, monkeypatch):
    monkeypatch.setattr(decoding, "copy_gb_per_s", lambda threads: 10.0)
    scenario = find_scenario("shape")
    settings = scenario.settings(
        bundle=bundle.folder, target=address, rounds=5, warm_up=0, prompt_tokens=64, answer_tokens=40
    )
    result = scenario.measure(settings)
    assert (result["model"], result["precision"], result["provider"]) == ("tiny", "float32", "cpu")
    assert {"embed", "network", "server", "decompress", "inject", "queue"} <= set(result["stages_ms"])
    assert result["memories_per_chunk"] == 5
    assert sum(result["states"].values()) >= 10, "40 tokens are two chunks and a half, in five rounds"
    for name in ("ratio", "ratio_exact", "bandwidth_fraction"):
        low, high = result["intervals"][name]
        assert 0 < low <= result[name] <= high
    shown = {**result, "settings": settings.model_dump(mode="json")}
    assert [len(sheet.rows) for sheet in scenario.sheets(shown)] == [4, 1]


def test_tables_of_which_a_step_gathers_rows_are_not_read_whole(tmp_path):
    def constant(name: str, kind: int, *shape: int) -> onnx.TensorProto:
        data = np.zeros(shape, np.float32 if kind == TensorProto.FLOAT else np.int8)
        if kind == TensorProto.INT4:
            return helper.make_tensor(name, kind, shape, bytes(data.size // 2), raw=True)
        return helper.make_tensor(name, kind, shape, data.tobytes(), raw=True)

    tensors = [
        constant("embeddings", TensorProto.FLOAT, 100, 8),
        constant("tied", TensorProto.FLOAT, 10, 8),
        constant("int4", TensorProto.INT4, 8, 16),
        constant("nobodys", TensorProto.FLOAT, 50),
    ]
    nodes = [
        helper.make_node("Gather", ["embeddings", "ids"], ["x"]),
        helper.make_node("Gather", ["tied", "ids"], ["y"]),
        helper.make_node("Use", ["x", "tied", "int4"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "g", [], [], tensors)
    onnx.save(helper.make_model(graph), tmp_path / "decoder.onnx")
    assert weight_bytes(tmp_path / "decoder.onnx") == 10 * 8 * 4 + 8 * 16 // 2
