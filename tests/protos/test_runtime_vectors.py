"""The runtime's vectors are what ONNX Runtime and torch compute today."""

import itertools
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
from tokenizers import Tokenizer

from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import open_decoder
from memory3.codec.payload import MemoryFormat
from memory3.files.bundle import Bundle
from memory3.runtime.backend import DecoderBackend
from memory3.runtime.cache_layout import fused_path
from memory3.runtime.onnx_runtime import ort
from memory3.text.refusal import Refusal
from memory_model.models.engine import TorchBackend
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
def manifest() -> dict[str, Any]:
    return json.loads((FOLDER / "bundle" / "manifest.json").read_text("utf-8"))  # type: ignore[no-any-return]


@cache
def cases() -> dict[str, Any]:
    return json.loads((FOLDER / "cases.json").read_text("utf-8"))  # type: ignore[no-any-return]


def client_of(graph: DecoderBackend, payload_format: MemoryFormat) -> Client:
    text = BatchingDecoder(graph, cases()["prefix"], context=512, parallel=2).sequence()
    return Client(
        lambda ids, memory: text.begin(ids, memory=memory),
        lambda tokens: text.read(tokens)[-1],
        lambda payloads: text.inject(payload_format.decode(payloads)),
    )


# What a client has that knows docs/reference/runtime.md and nothing of ours: numpy, ONNX Runtime, the tokenizer's file.


def decompressed(payload: bytes) -> np.ndarray:
    """Keys and values [2, rows of the budget, d] of the valid rows; the others are NaN."""
    config, codec = manifest()["config"], dict(np.load(FOLDER / "bundle" / "codec.npz"))
    mean, basis, words, coarse = (codec[n][0].astype(np.float32) for n in ("mean", "basis", "codewords", "coarse"))
    kept, together = [row[2] for row in config["memory"]["heads"]], json.loads(bytes(codec["header"]))["together"]
    tokens, at = int.from_bytes(payload[6:8], "little"), 56
    sides = np.full((2, sum(kept), config["head_dim"]), np.nan, np.float32)

    def taken(tables: np.ndarray) -> np.ndarray:
        nonlocal at
        bits = int(math.log2(tables.shape[1]))
        size = -(-len(tables) * bits // 8)
        code, at = int.from_bytes(payload[at : at + size], "little"), at + size
        return np.concatenate([table[code >> n * bits & (1 << bits) - 1] for n, table in enumerate(tables)])

    for block in range(0, 2 * len(kept), together):
        for token in range(min(tokens, kept[block // 2])):
            vectors = mean + (taken(coarse) + taken(words)) @ basis
            for group, vector in enumerate(vectors.reshape(together, -1), block):
                sides[group % 2, sum(kept[: group // 2]) + token] = vector
    assert at == len(payload)
    return sides


def document_client() -> Client:
    session, config = ort.InferenceSession(str(FOLDER / "bundle" / "decoder.onnx")), manifest()["config"]
    memory, d, prefix = config["memory"], config["head_dim"], cases()["prefix"]
    layers = [[tokens for at, _, tokens in memory["heads"] if at == layer] for layer in range(config["layers"])]
    layouts = [*dict.fromkeys(tuple(kept) for kept in layers if kept)]
    slots = [memory["memories_per_chunk"] * max(kept) for kept in layouts]
    angles = np.arange(512)[:, None] * config["rope_base"] ** (-np.arange(0, d, 2) / d)
    feeds = {f"rotary_{turn.__name__}": turn(angles).astype(np.float32) for turn in (np.cos, np.sin)}
    feeds |= {"batch_ids": np.arange(1), "columns": np.arange(512)}
    for side, (layer, kept) in itertools.product(("keys", "values"), enumerate(layers)):
        feeds[f"text_{side}_{layer}"] = np.zeros((1, config["kv_heads"] - len(kept), 512, d), np.float32)
        lead = memory["memories_per_chunk"] * max(kept, default=0)
        feeds[f"memory_{side}_{layer}"] = np.zeros((1, len(kept), lead + 512, d), np.float32)
    feeds = {name: array for name, array in feeds.items() if array.size}
    read_tokens, with_memory = 0, False

    def step(tokens: Sequence[int], position: int) -> np.ndarray:
        nonlocal read_tokens
        for number, size in enumerate(slots):
            feeds[f"memory_rows_{number}"] = np.array([read_tokens + with_memory * size])
        found = session.run(
            None,
            {
                **feeds,
                "token_ids": np.array([tokens]),
                "position_ids": position + np.arange(len(tokens))[None],
                "output_rows": np.array([len(tokens) - 1]),
                "text_rows": np.array([read_tokens]),
            },
        )
        named = {output.name: array for output, array in zip(session.get_outputs(), found, strict=True)}
        feeds.update({name.removesuffix("_out"): array for name, array in named.items() if name != "logits"})
        read_tokens += len(tokens)
        return np.asarray(named["logits"][0])

    def inject(payloads: Sequence[bytes]) -> None:
        for number, kept in enumerate(layouts):
            shape = (1, 1 if len({*kept}) == 1 else len(kept), slots[number])
            feeds[f"memory_mask_{number}"] = np.full(shape, -np.inf if with_memory else 0, np.float32)
        for place, sides in enumerate(map(decompressed, payloads)):
            first = 0
            for layer, kept in enumerate(layers):
                for head, tokens in enumerate(kept):
                    valid = int(np.isfinite(sides[0, first : first + tokens, 0]).sum())
                    rows = slice(place * max(kept), place * max(kept) + valid)
                    mask = feeds[f"memory_mask_{layouts.index(tuple(kept))}"]
                    mask[0, min(head, mask.shape[1] - 1), rows] = 0
                    for name, vectors in zip(("keys", "values"), sides, strict=True):
                        feeds[f"memory_{name}_{layer}"][0, head, rows] = vectors[first : first + valid]
                    first += tokens

    def begin(_: Sequence[int], memory: bool) -> None:
        nonlocal with_memory
        with_memory = memory
        inject([])
        step(prefix, 0)

    return Client(begin, lambda tokens: step(tokens, memory["reference_tokens"] + read_tokens), inject)


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


@pytest.mark.parametrize("engine", ["standard", "fused", "torch", "document"])
@pytest.mark.parametrize("number", range(6))
def test_every_runtime_computes_the_expected_logits_and_tokens(tmp_path: Path, engine: str, number: int) -> None:
    path = (tmp_path if engine == "standard" else FOLDER / "bundle") / "decoder.onnx"
    if engine == "standard":  # where the other variant lies beside it, that is opened
        for name in ("decoder.onnx", "decoder.onnx.data"):
            shutil.copy(FOLDER / "bundle" / name, tmp_path)
    assert fused_path(path).is_file() == (engine != "standard")
    graph = TorchBackend(loaded().model) if engine == "torch" else open_decoder(path, threads=1)
    payload_format = memory_format() if engine == "torch" else Bundle.open(FOLDER / "bundle").memory_format
    client = document_client() if engine == "document" else client_of(graph, payload_format)
    tolerance = TOLERANCE if engine in ("torch", "document") else COMPILED_TOLERANCE
    case, payloads = cases()["cases"][number], [bytes.fromhex(m["payload"]) for m in cases()["memories"]]
    client.begin(case["prompt"]["tokens"], case["memory"])
    for chunk in case["chunks"]:
        if chunk["recalled"] is not None:
            client.inject([payloads[m] for m in chunk["recalled"]])
        logits = client.read(chunk["tokens"])
        np.testing.assert_allclose(logits, chunk["logits"], atol=tolerance, rtol=0)
    refusal = Refusal(**case["refusal"])
    logits = logits.copy()
    logits[refusal.first_token(loaded().chat)] += refusal.bias_for(len(case["chunks"][-1]["reads"]))
    steps = {step["after_tokens"]: step for step in case["steps"]}
    for said, token in enumerate(case["tokens"]):
        assert int(logits.argmax()) == token, said
        step = steps.get(said + 1, {})
        if step.get("recalled") is not None:
            client.inject([payloads[m] for m in step["recalled"]])
        logits = client.read([token])
        if step:
            np.testing.assert_allclose(logits, step["logits"], atol=tolerance, rtol=0)


def test_queries_follow_from_the_document_alone() -> None:
    tokenizer, size = Tokenizer.from_file(str(FOLDER / "bundle" / "tokenizer.json")), 16
    own, both, mixed = (np.array(vector) for vector in cases()["mixing"].values())
    found = 0.6 * own + 0.4 * both
    np.testing.assert_allclose(found / np.linalg.norm(found), mixed, atol=TOLERANCE)
    for row in cases()["asking"]:
        assert row["after_tokens"] == [n for n in range(1, 65) if (n + min(row["lead_tokens"], size - 1)) % size == 0]
    for case in cases()["cases"]:
        told = list(zip(case["prompt"]["tokens"], case["prompt"]["content"], strict=True))
        for chunk in case["chunks"]:
            start, end, query = chunk["start"], chunk["start"] + len(chunk["tokens"]), None
            runs = [[t for t, _ in run] for said, run in itertools.groupby(told[:end], lambda one: one[1]) if said][-7:]
            if any(said for _, said in told[start:end]):
                turns, left = [], size
                for run in [runs[-1], *(runs[-3::-2] or runs[-2:-1])]:
                    turns.append(tokenizer.decode(run[max(len(run) - left, 0) :]).strip())
                    left = max(left - len(run), 0)
                query = {"text": turns[0], "earlier": [turn for turn in turns[1:] if turn]}
            assert chunk["query"] == query
        for step in (step for step in case["steps"] if "query" in step):
            last = [*(token for token, said in told if said), *case["tokens"][: step["after_tokens"]]][-size:]
            assert step["query"] == {"text": tokenizer.decode(last).strip(), "earlier": []}
            assert step["after_tokens"] % size == 0


def test_the_cases_are_those_of_the_production_code() -> None:
    same(json.loads(json.dumps(contents())), cases(), "run `python -m tests.protos.make_runtime_vectors`: ")


def test_the_bundle_is_the_one_that_is_exported_today(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    made, kept = (Bundle.open(folder / "bundle").manifest for folder in (tmp_path, FOLDER))
    assert made.files.keys() == kept.files.keys()
    for manifest in (made, kept):
        object.__setattr__(manifest, "files", {})
    assert made == kept, "run `python -m tests.protos.make_runtime_vectors`"
