from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from deploy.bench.weights_read import cache_bytes, weight_bytes
from tests.edge_client.tiny_bundle import tiny_config


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


@pytest.mark.parametrize("memories", [0, 3])
def test_caches_are_keys_and_values_of_text_everywhere_and_of_memories_in_their_heads(memories):
    text = 2 * tiny_config().layers * tiny_config().kv_heads * tiny_config().head_dim * 4 * 10
    slots = 2 * memories * tiny_config().memory.budget * tiny_config().head_dim * 4
    assert cache_bytes(tiny_config(), 10, memories) == text + slots
