"""The runtime's vectors are what ONNX Runtime and torch compute today."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.decoder.batch import Decoder
from edge_client.decoder.graph import DecoderGraph
from edge_client.recall.recaller import Recall
from memory_model.bundle import Bundle
from memory_model.cache_layout import fused_path
from memory_model.codec.payload import ExplicitMemory
from memory_model.nn.serving import BatchedDecoder
from memory_model.nn.writing import stack_memories
from memory_model.refusal import Refusal
from tests.protos.make_runtime_vectors import FOLDER, contents, loaded, memory_format, write_bundle

TOLERANCE, COMPILED_TOLERANCE = 1e-4, 1e-3
"""Of logits of size 1 to 5: float32 sums in another order; memories from the compiled codec's tables of 16 bits."""


@dataclass
class Client:
    """read: tokens to the logits [V] behind the last; inject: payloads, from the next token on."""

    begin: Callable[[Sequence[int], bool], object]
    read: Callable[[Sequence[int]], np.ndarray]
    inject: Callable[[Sequence[bytes]], None]


@cache
def cases() -> dict[str, Any]:
    return json.loads((FOLDER / "cases.json").read_text("utf-8"))  # type: ignore[no-any-return]


def onnx_client(decoder: Path) -> Client:
    bundle = Bundle.open(FOLDER / "bundle")
    graph = DecoderGraph.open(decoder, threads=1, context=512, parallel=1)
    text = Decoder(graph, cases()["prefix"], context=512, parallel=1).sequence()

    def inject(payloads: Sequence[bytes]) -> None:
        memories: list[ExplicitMemory] = bundle.memory_format.decode(payloads)
        text.inject(Recall("", tuple(memories)))

    return Client(lambda ids, memory: text.begin(ids, memory=memory), lambda tokens: text.read(tokens)[-1], inject)


def torch_client() -> Client:
    engine = BatchedDecoder(loaded().model, cases()["prefix"], 2, 512)

    def inject(payloads: Sequence[bytes]) -> None:
        engine.inject([1], stack_memories([memory_format().decode(payloads)], loaded().config))

    def read(tokens: Sequence[int]) -> np.ndarray:
        logits = engine.step([-1, *tokens])[1] if len(tokens) == 1 else engine.prefill([1], [tokens])[0]
        return np.asarray(logits.numpy())

    return Client(lambda *_: None, read, inject)


def same(found: Any, expected: Any, at: str = "") -> None:
    """Equal but for the last digits of floats."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for name in expected:
            same(found[name], expected[name], f"{at}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), at
        for number, item in enumerate(expected):
            same(found[number], item, f"{at}[{number}]")
    elif isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=0, abs_tol=TOLERANCE), at
    else:
        assert found == expected, at


@pytest.mark.parametrize("engine", ["standard", "fused", "torch"])
@pytest.mark.parametrize("number", range(6))
def test_every_runtime_computes_the_expected_logits_and_tokens(tmp_path: Path, engine: str, number: int) -> None:
    bundled = FOLDER / "bundle" / "decoder.onnx"
    if engine == "standard":  # where the other spelling lies beside it, that is opened
        for file in (bundled, bundled.with_name("decoder.onnx.data")):
            shutil.copy(file, tmp_path)
        client = onnx_client(tmp_path / "decoder.onnx")
    else:
        assert fused_path(bundled).is_file()
        client = torch_client() if engine == "torch" else onnx_client(bundled)
    tolerance = TOLERANCE if engine == "torch" else COMPILED_TOLERANCE
    case, payloads = cases()["cases"][number], [bytes.fromhex(m["payload"]) for m in cases()["memories"]]
    client.begin(case["prompt"]["tokens"], case["memory"])
    for chunk in case["chunks"]:
        if chunk["recalled"] is not None:
            client.inject([payloads[m] for m in chunk["recalled"]])
        logits = client.read(chunk["tokens"])
        np.testing.assert_allclose(logits, chunk["logits"], atol=tolerance, rtol=0)
    refusal = Refusal(**case["refusal"])
    if case["chunks"][-1]["reads"]:
        logits = logits.copy()
        logits[refusal.first_token(loaded().tokenizer)] += refusal.bias
    steps = {step["after_tokens"]: step for step in case["steps"]}
    for said, token in enumerate(case["tokens"]):
        assert int(logits.argmax()) == token, said
        step = steps.get(said + 1, {})
        if step.get("recalled") is not None:
            client.inject([payloads[m] for m in step["recalled"]])
        logits = client.read([token])
        if step:
            np.testing.assert_allclose(logits, step["logits"], atol=tolerance, rtol=0)


def test_the_cases_are_those_of_the_production_code() -> None:
    same(json.loads(json.dumps(contents())), cases(), "run `python -m tests.protos.make_runtime_vectors`: ")


def test_the_bundle_is_the_one_that_is_exported_today(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    made, kept = (Bundle.open(folder / "bundle").manifest for folder in (tmp_path, FOLDER))
    assert made.files.keys() == kept.files.keys()
    for manifest in (made, kept):
        object.__setattr__(manifest, "files", {})
    assert made == kept, "run `python -m tests.protos.make_runtime_vectors`"
