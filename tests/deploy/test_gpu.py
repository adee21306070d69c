"""The jobs for a GPU on a machine without one: they measure what they say, and name what did not run."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from deploy.gpu_local_server import PREFIX, SHAPES, LocalMemories, generate, main, random_decoder, random_format
from memory3.codec.codec import ProductCodec
from memory3.codec.payload import MemoryFormat
from memory3.runtime.backend import RunInput
from memory_model.models.engine import TorchBackend
from memory_model.nn.decompression import TorchCodec
from memory_model.nn.serving import BatchedDecoder
from tests.edge_client.tiny_bundle import random_memory


def test_retrieving_in_a_thread_gives_the_answers_of_waiting_for_it(tmp_path: Path) -> None:
    memories = LocalMemories(tmp_path, random_format(SHAPES["tiny"], "cpu"), 30, "cpu", torch.float32)
    engine = BatchedDecoder(random_decoder(SHAPES["tiny"], "cpu", torch.float32), PREFIX, 2, 40)
    prompts = [list(range(10, 26)), list(range(40, 56))]
    plain = generate(engine, prompts, 16, 8)
    exact = generate(engine, prompts, 16, 8, memories)
    with ThreadPoolExecutor(1) as thread:
        overlap = generate(engine, prompts, 16, 8, memories, thread)
    memories.base.close()
    assert memories.found == [10] * 6, "three retrievals each, every memory another one"
    assert torch.equal(exact, overlap)
    assert not torch.equal(exact, plain)


def test_what_a_gpu_decompresses_reads_as_what_a_processor_does() -> None:
    config = SHAPES["tiny"]
    graph, memory_format = TorchBackend(random_decoder(config, "cpu", torch.float32)), random_format(config, "cpu")
    assert isinstance(memory_format.codec, TorchCodec)
    plain = MemoryFormat(config, memory_format.identity.model_id, ProductCodec(memory_format.codec.tables))
    payloads = plain.encode([random_memory(config, seed, tokens) for seed, tokens in enumerate((8, 3))])
    assert graph.reading_format(plain) is plain, "a processor's compiled decoder is faster"
    graph.device = "cuda"
    here = graph.reading_format(plain).decode(payloads)
    assert isinstance(here[0].keys, torch.Tensor)
    logits = []
    for memories in (here, plain.decode(payloads)):
        runner = graph.runner(20, 1, PREFIX)
        runner.inject(0, memories)
        logits.append(runner.run(0, [RunInput([5, 6], 0, len(PREFIX), True)]))
    np.testing.assert_allclose(*logits, atol=1e-4)


@pytest.mark.slow
def test_the_job_reports_speeds_ratios_and_bandwidth(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = {"batch": 2, "prompt-tokens": 65, "answer-tokens": 66, "references": 20, "rounds": 5}
    small = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    assert main(["--device", "cpu", "--shape", "tiny", "--out", str(out), *small]) == 0
    result = json.loads(out.read_text())
    assert result["retrievals"] == 3
    assert set(result["tokens_per_s"]) == {"without", "exact", "overlap", "text"}
    for ratio in (result["ratio_exact"], result["ratio_overlap"], result["ratio_to_text"]):
        assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    assert 0 < result["bandwidth_share"]["with"] < 1
    slots = 2 * 2 * 5 * SHAPES["tiny"].memory.budget * 16 * 4  # sequences, sides, memories, rows, numbers, bytes
    assert result["step_bytes"]["with"] - result["step_bytes"]["without"] == slots
