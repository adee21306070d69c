"""`edge-client verify` without a GPU: the CPU is compared, the others are named with why they did not run."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.cli import verify
from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import nvidia
from memory_model.models.engine import TorchBackend
from tests.edge_client.cli.conftest import run
from tests.edge_client.tiny_bundle import tiny_bundle, tiny_loaded


def test_the_cpu_and_torch_agree_and_what_did_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "gpu", lambda: None)
    bundle, out = tiny_bundle(tmp_path), tmp_path / "out.json"
    assert "not run torch" in run("verify", "--bundle", bundle.folder, "--out", out, "--steps", 1).stdout
    monkeypatch.setattr(TorchBackend, "open", lambda *_: TorchBackend(tiny_loaded().model))
    done = run("verify", "--bundle", bundle.folder, "--out", out, "--steps", 4)
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())["rows"]
    ran = {(r["provider"], r["memory"]): r["error"] for r in rows if r["error"] is not None}
    assert list(ran) == [(name, memory) for name in ("cpu", "torch") for memory in (False, True)]
    assert ran["torch", False] < ran["cpu", False] + 1e-3 < 0.03
    assert all("no NVIDIA GPU" in r["problem"] for r in rows if r["error"] is None)
    assert (done.stdout.count("not run"), "ran: cpu, torch" in done.stdout) == (4, True)
    logits = verify.decode(verify.reference(bundle), [5, 6, 7], (), steps=3).logits
    assert len(np.unique(logits, axis=0)) == 4, "no read overwrites what an earlier one returned"


def test_a_provider_that_computes_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, real, right = tiny_bundle(tmp_path), verify.decode, verify.reference

    def wrong(decoder: BatchingDecoder, *arguments: Any) -> verify.Decoded:
        found = real(decoder, *arguments)
        return found if decoder is references[0] else replace(found, logits=found.logits * 1.5)

    references: list[BatchingDecoder] = []
    monkeypatch.setattr(verify, "reference", lambda b: references.append(right(b)) or references[0])
    monkeypatch.setattr(verify, "decode", wrong)
    assert run("verify", "--bundle", bundle.folder, "--out", tmp_path / "out", "--steps", 2).exit_code == 1


def test_a_gpu_that_cuda_does_not_run_on_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "gpu", lambda: nvidia.Gpu("Orin", "87"))
    done = run("verify", "--bundle", tiny_bundle(tmp_path).folder, "--out", tmp_path / "out", "--steps", 2)
    assert done.exit_code == 1
    assert "FAIL cuda" in done.stdout


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
