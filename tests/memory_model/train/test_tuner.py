"""Tuning learns, resumes exactly, and its adapter survives its file."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from memory3.errors import BaseMismatch, CorruptFile, InvalidInput, MissingFile
from memory_model.data.conversations import FactConversations, Sizes, references_of
from memory_model.models.load import load_model
from memory_model.nn.adapter import Adapter, attach, collect
from memory_model.nn.fused import product_type
from memory_model.train.distributed import locked
from memory_model.train.tuner import Tuner, TuningPlan
from testing.programs import ROOT, ran
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.memory_model.data.small_sources import DOCUMENTS
from tests.memory_model.tiny import PREFIX, tiny_model
from tests.memory_model.train.adapting import adapt, adapt_command, model_with_facts
from tests.memory_model.train.plain import interrupted

PLAIN = Sizes(written=6, conversations=4, as_text=0.0)


def batches() -> FactConversations:
    loaded = tiny_loaded()
    references = references_of(DOCUMENTS[:6], loaded.tokenizer, limit=32)
    return FactConversations(references, loaded.chat, 0, PLAIN, whole=1.0)


def tuner(folder: Path, steps: int, *, start: Adapter | None = None, **plan: object) -> Tuner:
    fields = {"rank": 4, "first_layer": 0, "learning_rate": 1e-2, "warmup": 2}
    made = TuningPlan(steps=steps, **{**fields, **plan})  # type: ignore[arg-type]
    return Tuner(tiny_loaded().model, PREFIX, batches(), made, folder, "base", start=start)


def test_tuning_lowers_the_loss_and_resumes_exactly(tmp_path: Path) -> None:
    def run(folder: str, every: int) -> Tuner:
        return tuner(tmp_path / folder, steps=8, checkpoint_every=every)

    losses: list[float] = []
    ended = run("whole", 100).run(lambda step: losses.append(step.loss))
    assert sum(losses[-3:]) < sum(losses[:3])
    seen = interrupted(run("cut", 4).run, after=5)
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ta')  # a kill in the midst of a line
    again = run("cut", 4)
    assert again.resume()
    assert again.step == 4
    rest: list[float] = []
    resumed = again.run(lambda step: rest.append(step.loss))
    assert seen[:4] + rest == losses
    assert [line["step"] for line in metrics(tmp_path / "cut")] == list(range(1, 9)), "each step once"
    for name, added in ended.added().items():
        assert torch.equal(added, resumed.added()[name]), name


def test_a_run_that_is_given_little_time_saves_and_goes_on(tmp_path: Path) -> None:
    first = tuner(tmp_path, steps=2)
    first.run(limit_s=0.0)
    assert (first.step, first.finished) == (0, False)
    second = tuner(tmp_path, steps=2)
    assert second.resume()
    second.run()
    assert second.finished
    for setting, value in {"learning_rate": 5e-3, "rows": 1, "sequence": 64}.items():
        with pytest.raises(InvalidInput, match=setting):
            tuner(tmp_path, steps=2, **{setting: value}).resume()


def test_a_truncated_state_is_named(tmp_path: Path) -> None:
    tuner(tmp_path, steps=1).run()
    state = tmp_path / "state.pt"
    for keep in (state.stat().st_size // 2, 10, 0):
        state.write_bytes(state.read_bytes()[:keep])
        with pytest.raises(CorruptFile, match=r"state\.pt"):
            tuner(tmp_path, steps=1).resume()


def test_an_adapter_survives_its_file_and_merges_to_the_same_model(tmp_path: Path) -> None:
    tuned = tiny_model()
    attach(tuned, rank=3, alpha=6.0, first_layer=1)
    for name, parameter in tuned.named_parameters():
        if name.endswith(".b"):
            parameter.data.normal_(0, 0.1)
    collect(tuned, tuned.config.memory, "abc", {"steps": 1}).save(tmp_path / "a.safetensors")
    adapter = Adapter.load(tmp_path / "a.safetensors")
    assert (adapter.base_sha256, adapter.memory, adapter.scale) == ("abc", tuned.config.memory, 2.0)
    merged = tiny_model()
    merged.to(product_type("cpu")).float()  # in which tuning holds the frozen weights
    weights = dict(merged.named_parameters())
    for name, delta in adapter.added().items():
        weights[name].data += delta
    ids, positions = torch.randint(0, 64, (1, 7)), torch.arange(7)[None]
    with torch.inference_mode():
        ours = merged.hidden(ids, positions)
        theirs = tuned.float().hidden(ids, positions)
    torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=1e-2)


def test_a_run_goes_on_with_the_adapter_that_it_began_with(tmp_path: Path) -> None:
    starts = [tuner(tmp_path / str(seed), steps=1, seed=seed).run() for seed in range(2)]
    tuner(tmp_path / "run", steps=2, start=starts[0]).run(limit_s=0.0)
    starts[0].save(tmp_path / "kept.safetensors")
    assert tuner(tmp_path / "run", steps=2, start=Adapter.load(tmp_path / "kept.safetensors")).resume()
    for other in (starts[1], None):
        with pytest.raises(InvalidInput, match=r"\(start\)"):
            tuner(tmp_path / "run", steps=2, start=other).resume()


def test_an_adapter_that_does_not_fit_what_is_tuned_is_not_continued(tmp_path: Path) -> None:
    low_rank = tuner(tmp_path / "a", steps=2).run()
    same = tuner(tmp_path / "b", steps=0, start=low_rank).run()
    for name, added in low_rank.added().items():
        torch.testing.assert_close(same.added()[name], added)
    with pytest.raises(InvalidInput, match="--first-layer"):
        tuner(tmp_path / "c", steps=1, start=low_rank, first_layer=2)
    with pytest.raises(InvalidInput, match="--rank 4"):
        tuner(tmp_path / "c", steps=1, start=low_rank, rank=8)


@pytest.mark.parametrize("header", [{"memory": "x"}, {"scale": [1]}, [], "factors of another rank"])
def test_a_damaged_adapter_is_refused(tmp_path: Path, header: Any) -> None:
    path = tmp_path / "a.safetensors"
    tuned = tiny_model()
    attach(tuned, rank=2, alpha=2.0, first_layer=0)
    collect(tuned, tuned.config.memory, "0" * 64, {}).save(path)
    with safe_open(path, framework="pt") as file:
        own = json.loads(file.metadata()["memory3"])
        factors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if isinstance(header, str):
        name = max(factors)
        factors[name], header = factors[name][:, :1].contiguous(), own
    elif isinstance(header, dict):
        header = own | header
    save_file(factors, path, metadata={"memory3": json.dumps(header)})
    with pytest.raises(CorruptFile, match="not an adapter file"):
        Adapter.load(path)


def test_adapters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tuned = tiny_model()
    attach(tuned, rank=2, alpha=2.0, first_layer=2)
    adapter = collect(tuned, tuned.config.memory, "0" * 64, {})
    path = tmp_path / "a.safetensors"
    adapter.save(path)
    with pytest.raises(BaseMismatch, match="000000000000"):
        load_model(adapter=path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptFile):
        Adapter.load(path)
    with pytest.raises(MissingFile, match="adapt"):
        Adapter.load(tmp_path / "none")


# Two processes that torchrun starts tune like one, and no two processes tune in one folder.

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


STOPPED = ["--minutes", "0.000001"]


@pytest.mark.slow
@pytest.mark.parametrize("runs", [[[]], [STOPPED, []]], ids=["at once", "begun, stopped, to the end"])
def test_two_processes_tune_like_one_and_one_goes_on_with_their_run(tmp_path: Path, runs: list[list[str]]) -> None:
    folder = model_with_facts(tmp_path)

    def options(run: str, *more: str) -> tuple[str, ...]:
        sizes = ("--steps", "4", "--accumulate", "2", "--learning-rate", "0.02", "--threads", "1")
        return ("--out", str(tmp_path / run), *sizes, *more)

    adapt(folder, *options("alone"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for more in runs:
        command = adapt_command(folder, *options("two", *more))
        ran(*TORCHRUN, "-m", "memory_model.cli", *command, cwd=ROOT, env=environment)
    one, two = metrics(tmp_path / "alone"), metrics(tmp_path / "two")
    assert [line["step"] for line in two] == [1, 2, 3, 4], "the first process alone writes"
    for ours, expected in zip(two, one, strict=True):
        for name in ("loss", "kept", "norm", "tokens", "padding"):
            assert ours[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    first, second = (Adapter.load(tmp_path / run / "adapter.safetensors").added() for run in ("alone", "two"))
    for weight, added in first.items():
        assert float((second[weight] - added).norm() / added.norm()) < 0.05, weight
    assert "finished before, after 4 steps" in adapt(folder, *options("two"))


def test_batches_that_cannot_be_shared_evenly_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
