"""Opening the decoder: how many threads it gets, and memory that goes back when it is dropped."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from edge_client.decoder import graph
from edge_client.decoder.graph import DecoderGraph, return_free_memory
from memory_model.bundle import Bundle

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
