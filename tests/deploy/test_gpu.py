"""The jobs for a GPU on a machine without one: they measure what they say, and name what did not run."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy import verify_gpu as verify
from deploy.gpu_local_server import PREFIX, SHAPES, LocalMemories, generate, main, random_decoder, random_format
from edge_client.decoder import providers
from edge_client.decoder.batch import Decoder
from memory_model.nn.serving import BatchedDecoder
from tests.edge_client.tiny_bundle import tiny_bundle


def test_retrieving_in_a_thread_gives_the_answers_of_waiting_for_it(tmp_path: Path) -> None:
    memories = LocalMemories(tmp_path, random_format(SHAPES["tiny"]()), 30, "cpu", torch.float32)
    engine = BatchedDecoder(random_decoder(SHAPES["tiny"](), "cpu", torch.float32), PREFIX, 2, 40)
    prompts = [list(range(10, 26)), list(range(40, 56))]
    plain = generate(engine, prompts, 16, 8)
    exact = generate(engine, prompts, 16, 8, memories)
    with ThreadPoolExecutor(1) as thread:
        overlap = generate(engine, prompts, 16, 8, memories, thread)
    memories.store.close()
    assert memories.found == [10] * 6, "three retrievals each, every memory another one"
    assert torch.equal(exact, overlap)
    assert not torch.equal(exact, plain)


def test_the_job_reports_speeds_ratios_and_bandwidth(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = {"batch": 2, "prompt-tokens": 65, "answer-tokens": 66, "references": 20, "rounds": 5}
    small = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    assert main(["--device", "cpu", "--shape", "tiny", "--out", str(out), *small]) == 0
    result = json.loads(out.read_text())
    assert result["retrievals"] == 3
    assert set(result["tokens_per_s"]) == {"without", "exact", "overlap"}
    for ratio in (result["ratio_exact"], result["ratio_overlap"]):
        assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    assert 0 < result["bandwidth_share"]["with"] < 1
    slots = 2 * 2 * 5 * SHAPES["tiny"]().memory.budget * 16 * 4  # sequences, sides, memories, rows, numbers, bytes
    assert result["step_bytes"]["with"] - result["step_bytes"]["without"] == slots


def test_the_cpu_agrees_with_itself_and_what_did_not_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(providers, "gpu", lambda: None)
    bundle, out = tiny_bundle(tmp_path), tmp_path / "out.json"
    assert verify.main(["--bundle", str(bundle.folder), "--out", str(out), "--steps", "4"]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(r["provider"], r["memory"]) for r in rows if r["error"] is not None] == [("cpu", False), ("cpu", True)]
    assert all("no NVIDIA GPU" in r["problem"] for r in rows if r["provider"] != "cpu")
    said = capsys.readouterr().out
    assert said.count("not run") == 4
    assert "ran: cpu" in said


def test_a_provider_that_computes_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, real, right = tiny_bundle(tmp_path), verify.decode, verify.reference

    def wrong(decoder: Decoder, *arguments: Any) -> verify.Decoded:
        found = real(decoder, *arguments)
        return found if decoder is references[0] else replace(found, logits=found.logits * 1.5)

    references: list[Decoder] = []
    monkeypatch.setattr(verify, "reference", lambda b: references.append(right(b)) or references[0])
    monkeypatch.setattr(verify, "decode", wrong)
    assert verify.main(["--bundle", str(bundle.folder), "--out", str(tmp_path / "out"), "--steps", "2"]) == 1


LINES = [
    "11-21-2026 10:00:00 RAM 2722/30697MB (lfb 3x4MB) SWAP 0/15348MB (cached 0MB) CPU [2%@729,0%@729] GR3D_FREQ 0%"
    " cpu@45.5C soc2@41.3C tboard@33C VDD_GPU_SOC 2400mW/2400mW VDD_CPU_CV 800mW/800mW VIN_SYS_5V0 2822mW/2800mW",
    "11-21-2026 10:00:01 RAM 2722/30697MB (lfb 3x4MB) SWAP 0/15348MB (cached 0MB) CPU [9%@2201,0%@729] GR3D_FREQ 99%"
    " cpu@50.5C soc2@42.3C tboard@33C VDD_GPU_SOC 9600mW/6000mW VDD_CPU_CV 1200mW/1000mW VIN_SYS_5V0 3022mW/2900mW",
]


def test_power_is_the_mean_of_each_rail_of_tegrastats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tegrastats"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(LINES) + "\nEND\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with verify.tegrastats() as recorded:
        time.sleep(0.5)
    assert verify.mean_power(recorded) == {"VDD_GPU_SOC": 6000.0, "VDD_CPU_CV": 1000.0, "VIN_SYS_5V0": 2922.0}
    assert verify.mean_power([]) == {}
