"""Opening the decoder: its threads, memory that goes back, memories and contexts that do not fit."""

import os
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from edge_client.decoder import graph
from edge_client.decoder.graph import DecoderGraph, return_free_memory
from edge_client.decoder.kv import Caches, check_memories
from edge_client.errors import ProviderError
from memory_model.bundle import Bundle
from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput
from tests.edge_client.tiny_bundle import random_memory, tiny_config

BLOCK_BYTES, BLOCKS, KEPT_EVERY = 32 << 10, 2000, 16


def test_the_number_of_threads_is_measured_once_and_kept_with_the_bundle(
    tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny.folder, tmp_path / "bundle", ignore=shutil.ignore_patterns("cache")))
    measured: list[int] = []

    def step(opened: DecoderGraph) -> float:
        measured.append(opened.threads)
        return 10.0 / opened.threads

    monkeypatch.setattr(graph, "step_ms", step)
    monkeypatch.setattr(graph, "physical_cores", lambda: 3)
    assert DecoderGraph.open(folder / "decoder.onnx", provider="cpu").threads == 3
    assert measured == [1, 2, 3]
    assert DecoderGraph.open(folder / "decoder.onnx", provider="cpu").threads == 3
    assert measured == [1, 2, 3]
    monkeypatch.setattr(graph, "physical_cores", lambda: 2)  # another machine: measured again
    assert DecoderGraph.open(folder / "decoder.onnx", provider="cpu").threads == 2
    assert DecoderGraph.open(folder / "decoder.onnx", threads=1).threads == 1
    assert measured == [1, 2, 3, 1, 2]
    (folder / "cache" / "threads.json").write_text("garbage")
    assert DecoderGraph.open(folder / "decoder.onnx", provider="cpu").threads == 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_free_pages_between_others_go_back() -> None:
    blocks = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(BLOCKS)]
    kept = blocks[::KEPT_EVERY]  # the heap's end is in use, so nothing goes back by itself
    full = resident_bytes()
    del blocks
    return_free_memory()
    returned = full - resident_bytes()
    assert all(block.all() for block in kept)
    if platform.libc_ver()[0] == "glibc":
        assert returned > BLOCK_BYTES * BLOCKS // 2


CONFIG = tiny_config()


def test_what_does_not_fit_the_slots_is_refused() -> None:
    good = [random_memory(CONFIG, n) for n in range(6)]
    small = ExplicitMemory(good[0].keys[:-1], good[0].values, 3)
    broken = ExplicitMemory(good[0].keys * np.nan, good[0].values, 3)
    infinite = ExplicitMemory(good[0].keys, good[0].values + np.inf, 3)
    for bad, why in (
        (good, "6 memories"),
        ([small], "expected"),
        ([good[0], broken], "NaN"),
        ([infinite], "infinity"),
        ([ExplicitMemory(good[0].keys, good[0].values, 0)], "0 tokens"),
        ([ExplicitMemory(good[0].keys, good[0].values, 33)], "33 tokens"),
    ):
        with pytest.raises(InvalidInput, match=why):
            check_memories(bad, CONFIG)


def test_a_context_that_no_memory_holds_is_called_so() -> None:
    with pytest.raises(ProviderError, match="shorter context") as raised:
        Caches(CONFIG, 10**13)
    assert raised.value.reason == "OUT_OF_MEMORY"
