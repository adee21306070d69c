"""`make real-size`: models of real size through the whole chain of real commands, with the memory that each takes.

For a random model of the paper's 2.4 B shape and one of Qwen2.5-1.5B's: base, model folder, codec fitted to its own
memories, int4 bundle, a service that writes with it, references ingested over gRPC, a question answered on the device
with memories read, TensorRT-RTX's engine of the whole decoder. What such a model says means nothing; what it costs is
real.

A stage is skipped when `log.jsonl` has it and its output is there, so an interrupted run goes on where it was. A bundle
is exported again when the exporter or the model folder has changed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.default_bundle import is_current, made_from, record
from testing.processes import PROGRAMS, ProcessFailed, ServiceProcess
from testing.programs import ROOT

WORK = ROOT / "build" / "real-size"
LOG = WORK / "log.jsonl"
FACTBOOK = ROOT / "data" / "factbook.jsonl"
REFERENCES = 20
CHARACTERS = 300
"""Of a document that is ingested: one reference."""
QUESTION = "What is the highest point of Benin?"
PRECISION = "int4-128"
STAGES = ("random-base", "new", "fit-codec", "export", "ingest", "ask", "serve", "tensorrt")
"""In their order in the log: `serve` is logged when the service has stopped, with its start's seconds."""
console = Console(width=120 if not sys.stdout.isatty() else None, highlight=False)


@dataclass(frozen=True)
class RealModel:
    """A preset of `python -m experiments random-base`, its codec's FAISS factory, references that it is fitted to."""

    name: str
    factory: str
    references: int


# The two-part residual stage of 14 bits needs 16,384 vectors and more: a memory of the paper's budget has 2,816 of
# them, one of Qwen's shape 448.
MODELS = (RealModel("memory3-2b", "OPQ20_80,Residual2x14,PQ8x10", 20), RealModel("qwen2.5-1.5b", "", 60))


def main() -> int:
    """Run the stages that are not done; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", choices=[shape.name for shape in MODELS], help="one shape")
    arguments.add_argument("--until", choices=STAGES, default=STAGES[-1], help="the last stage")
    options = arguments.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        for shape in MODELS:
            if options.only in (None, shape.name):
                walk(shape, STAGES[: STAGES.index(options.until) + 1])
    except ProcessFailed as failure:
        console.print(f"[bold red]failed:[/] {failure}")
        return 1
    except KeyboardInterrupt:
        console.print("[bold red]interrupted[/]; the same command goes on with this stage")
        return 130
    finally:
        show()
    return 0


def walk(shape: RealModel, stages: Sequence[str]) -> None:
    """The stages of one shape in their order."""
    base, bundle = (WORK / f"{shape.name}-{part}" for part in ("base", "bundle"))
    model, codec = WORK / shape.name, WORK / shape.name / "codec.npz"
    fitting = ("--references", shape.references, *(("--factory", shape.factory) if shape.factory else ()))
    engine = WORK / f"{shape.name}.engine"
    build = (sys.executable, "-m", "deploy.tensorrt_engine", bundle, "--out", engine)
    commands: dict[str, tuple[Path, Sequence[object]]] = {
        "random-base": (base, (sys.executable, "-m", "experiments", "random-base", shape.name, "--out", base)),
        "new": (model, ("memory-model", "new", base, "--out", model)),
        "fit-codec": (codec, ("memory-model", "fit-codec", "--model", model, *fitting)),
        "export": (bundle, ("memory-model", "export", "--model", model, "--precision", PRECISION, "--out", bundle)),
        "tensorrt": (engine, build),
    }
    state = ""
    for stage in stages:
        if stage == "export" and not is_current(bundle, state := made_from(model=model)):
            shutil.rmtree(bundle, ignore_errors=True)
        if stage == "serve":
            serve_and_ask(shape, model, bundle)
        elif stage in commands and not ((output := commands[stage][0]).exists() and (shape.name, stage) in logged()):
            shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)
            with timed(shape, stage, output) as entry:
                entry["peak_gb"], printed = run(shape, stage, commands[stage][1])
                if stage == "export":
                    record(bundle, state)
                if stage == "tensorrt":
                    entry["printed"] = printed.strip()


def serve_and_ask(shape: RealModel, model: Path, bundle: Path) -> None:
    """A service with its own writer; references over gRPC; an answer that read memories."""
    work = WORK / f"{shape.name}-service"
    if work.exists() and all((shape.name, stage) in logged() for stage in ("serve", "ingest", "ask")):
        return
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    countries = [json.loads(line) for line in FACTBOOK.read_text("utf-8").splitlines()]
    countries.sort(key=lambda country: country["title"] != "Benin")
    documents = work / "documents.jsonl"
    short = ({**country, "text": country["text"][:CHARACTERS]} for country in countries[:REFERENCES])
    documents.write_text("".join(json.dumps(document) + "\n" for document in short), encoding="utf-8")
    with timed(shape, "serve", work / "service.log") as entry:
        service = ServiceProcess.start(work, bundle, model=model)
        entry["seconds"] = time.monotonic() - entry["began"]
        with service:
            with timed(shape, "ingest", work / "store") as ingesting:
                command = ("memory-service", "ingest", documents, "--address", service.address)
                ingesting["peak_gb"], printed = run(shape, "ingest", command)
                ingesting["printed"] = printed.strip()
                if f"{REFERENCES} references" not in printed:
                    raise ProcessFailed(f"{REFERENCES} references were to be ingested, not: {printed}")
            with timed(shape, "ask", work) as asking:
                question = ("edge-client", "ask", QUESTION, "--bundle", bundle, "--service", service.address)
                options = ("--json", "--require-memory", "--max-tokens", 70)
                asking["peak_gb"], printed = run(shape, "ask", (*question, *options))
                asking["printed"] = what_was_read(json.loads(printed))
            entry["peak_gb"] = peak_gb(service.process.pid)


def what_was_read(answer: dict[str, Any]) -> str:
    """The memories that an answer read and its speed; raises ProcessFailed where it read none."""
    chunks = answer["memories"]
    read = [memory["title"] for chunk in chunks for memory in chunk["read"] if not memory["refused"]]
    if not read:
        raise ProcessFailed(f"the answer read no memories: {[chunk['error'] for chunk in chunks]}")
    speed = answer["statistics"]["tokens_per_s"]
    return f"{len(read)} memories in {len(chunks)} chunks, of {', '.join(sorted(set(read)))}; {speed:.1f} tokens/s"


def run(shape: RealModel, stage: str, command: Sequence[object]) -> tuple[float, str]:
    """Run one of our programs: its peak of resident memory in GB and its output. Raises ProcessFailed.

    Its progress is shown on a terminal; elsewhere a log gets it.
    """
    output, log = (WORK / f"{shape.name}-{stage}.{kind}" for kind in ("out", "log"))
    words = [str(PROGRAMS / str(command[0])), *map(str, command[1:])]
    with output.open("wb") as answers, log.open("wb") as errors:
        shown = None if console.is_terminal else errors
        process = subprocess.Popen(words, stdout=answers, stderr=shown, cwd=ROOT)
        try:
            _, status, used = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.kill()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ProcessFailed(f"{' '.join(map(str, command[:2]))} exited with {process.returncode}; see {log}")
    return used.ru_maxrss / 1e6 * 1.024, output.read_text(encoding="utf-8")


def peak_gb(pid: int) -> float:
    """Most resident memory that a running process had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e6 * 1.024


@contextmanager
def timed(shape: RealModel, stage: str, output: Path) -> Iterator[dict[str, Any]]:
    """A stage in the log with its seconds, the size of its output, and what the block adds; not when it fails."""
    console.print(f"[bold]{shape.name}[/] {stage} …")
    entry: dict[str, Any] = {"began": time.monotonic()}
    yield entry
    seconds = time.monotonic() - entry.pop("began")
    files = [f for f in output.rglob("*") if f.is_file()] if output.is_dir() else [output]
    entry = {"seconds": round(seconds, 1), **entry, "output_gb": sum(f.stat().st_size for f in files) / 1e9}
    entry |= {"load": os.getloadavg()[0], "at": datetime.datetime.now().isoformat(timespec="seconds")}
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps({"shape": shape.name, "stage": stage, **entry}) + "\n")
    console.print(f"  {entry['seconds']:.0f} s, {entry['peak_gb']:.1f} GB; {entry.get('printed', '')}")


def logged() -> dict[tuple[str, str], dict[str, Any]]:
    """The stages that ended well and what they are made from did not change since."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in LOG.read_text(encoding="utf-8").splitlines() if LOG.is_file() else []:
        entry = json.loads(line)
        shape, number = entry["shape"], STAGES.index(entry["stage"])
        found = {key: e for key, e in found.items() if key[0] != shape or STAGES.index(key[1]) < number}
        found[shape, entry["stage"]] = entry
    return found


def show() -> None:
    """All stages so far as a table."""
    table = Table("model", "stage", "s", "peak, GB", "output, GB", "load", "", title="real size")
    for (shape, stage), entry in logged().items():
        figures = (f"{entry[name]:.2f}" for name in ("peak_gb", "output_gb", "load"))
        table.add_row(shape, stage, f"{entry['seconds']:.0f}", *figures, entry.get("printed", ""))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
