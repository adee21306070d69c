"""Two processes that torchrun starts tune like one, and no two processes tune in one folder."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_model.errors import InvalidInput
from memory_model.nn.adapter import Adapter
from memory_model.train.distributed import locked
from tests.memory_model.train.test_adapt_command import adapt, adapt_command, model_with_facts
from tests.programs import ROOT, ran

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_tune_like_one_and_one_goes_on_with_their_run(tmp_path: Path) -> None:
    folder = model_with_facts(tmp_path)

    def options(run: str, *more: str) -> tuple[str, ...]:
        sizes = ("--steps", "4", "--accumulate", "2", "--learning-rate", "0.02", "--threads", "1")
        return ("--out", str(tmp_path / run), *sizes, *more)

    adapt(folder, *options("alone"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for more in (["--minutes", "0.000001"], []):  # begun and stopped at once, then to the end
        command = adapt_command(folder, *options("two", *more))
        ran(*TORCHRUN, "-m", "memory_model.cli", *command, cwd=ROOT, env=environment)
    one, two = metrics(tmp_path / "alone"), metrics(tmp_path / "two")
    assert [line["step"] for line in two] == [1, 2, 3, 4], "the first process alone writes"
    for ours, expected in zip(two, one, strict=True):
        for name in ("loss", "teacher", "norm", "tokens", "padding"):
            assert ours[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    first, second = (Adapter.load(tmp_path / run / "adapter.safetensors").added() for run in ("alone", "two"))
    for weight, added in first.items():
        assert float((second[weight] - added).norm() / added.norm()) < 0.05, weight
    assert "resuming at step 4" in adapt(folder, *options("two"))


def test_batches_that_cannot_be_shared_evenly_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.memory_model.train.test_tuner import tuner

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidInput, match="--accumulate 3"):
        tuner(tmp_path, steps=1, accumulate=3)


def test_a_folder_is_held_until_its_process_ends_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\nfrom memory_model.train.distributed import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InvalidInput, match=f"process {holder.pid} .*{tmp_path.name}"), locked(tmp_path):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locked(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
