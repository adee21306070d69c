"""The GPU job on a processor, with a tiny shape: it measures what it says, and its variants compute the same."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from deploy.gpu.local_server import (
    PREFIX,
    SHAPES,
    LocalMemories,
    generate,
    main,
    random_decoder,
    random_format,
)
from memory_model.nn.serving import BatchedDecoder


@pytest.fixture
def memories(tmp_path: Path) -> LocalMemories:
    return LocalMemories(tmp_path, random_format(SHAPES["tiny"]()), 30, "cpu", torch.float32)


def test_retrieving_in_a_thread_gives_the_answers_of_waiting_for_it(memories: LocalMemories) -> None:
    engine = BatchedDecoder(random_decoder(SHAPES["tiny"](), "cpu", torch.float32), PREFIX, 2, 40)
    prompts = [list(range(10, 26)), list(range(40, 56))]
    plain = generate(engine, prompts, 16, 8)
    exact = generate(engine, prompts, 16, 8, memories)
    with ThreadPoolExecutor(1) as thread:
        overlap = generate(engine, prompts, 16, 8, memories, thread, lead_tokens=3)
    memories.store.close()
    assert memories.found == [10] * 6, "three retrievals each, every memory another one"
    assert torch.equal(exact, overlap)
    assert not torch.equal(exact, plain)


def test_the_job_reports_speeds_ratios_and_bandwidth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [
        "--batch",
        "2",
        "--prompt-tokens",
        "65",
        "--answer-tokens",
        "66",
        "--references",
        "20",
        "--rounds",
        "5",
    ]
    assert main(["--device", "cpu", "--shape", "tiny", "--out", str(tmp_path), *small]) == 0
    result = json.loads((tmp_path / "local-server.json").read_text())
    assert result["retrievals"] == 3
    assert set(result["tokens_per_s"]) == {"without", "exact", "overlap"}
    assert {len(rounds) for rounds in result["seconds"].values()} == {5}
    for ratio in (result["ratio_exact"], result["ratio_overlap"]):
        assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    assert 0 < result["bandwidth_share"]["with"] < 1
    slots = (
        2 * 2 * 5 * SHAPES["tiny"]().memory.budget * 16 * 4
    )  # sequences, sides, memories, rows, numbers, bytes
    assert result["step_bytes"]["with"] - result["step_bytes"]["without"] == slots


def test_without_a_gpu_the_job_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main([]) == 1
    assert "--device cpu" in capsys.readouterr().err
