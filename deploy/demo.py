"""`make demo`: the whole way through the real commands, each in a process of its own.

Export the bundle, start the service with an embedded store, ingest countries over gRPC, ask about countries that were
held out of tuning, each question without and with memory, stop the service. A failure exits with 1 and says what to do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
WORK = ROOT / "build" / "demo"
ASSETS = ROOT / "memory_model" / "assets" / "smollm2-135m"
KNOWLEDGE = ROOT / "data" / "factbook.jsonl"
HELD_OUT = ROOT / "data" / "heldout.json"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0

console = Console(width=120 if not sys.stdout.isatty() else None)


@dataclass(frozen=True)
class Question:
    """A question about the country `key`; the line `field` of its document holds the answer."""

    key: str
    text: str
    field: str


# Countries that the model was not tuned on, each with neighbours that have the same kind of lines.
QUESTIONS = (
    Question("bn", "What is the highest point of Benin?", "Elevation extremes - highest point"),
    Question("mv", "What are the national symbols of Maldives?", "National symbol(s)"),
    Question("tu", "How long is the road network of Turkey?", "Roadways - total"),
)
NEIGHBOURS = ("to", "ng", "ni", "in", "ce", "mp", "bu", "gr", "gg")


class StepFailed(Exception):
    """A step of the demo did not do its work; the message says which and where its output is."""


def main() -> int:
    """Runs all steps and returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--bundle", type=Path, default=ROOT / "build" / "bundle", help="folder of the edge bundle"
    )
    arguments.add_argument("--full", action="store_true", help="ingest all countries, not a part")
    options = arguments.parse_args()
    started = time.monotonic()
    try:
        bundle = options.bundle.resolve()
        export(bundle)
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        documents = choose_documents(full=options.full)
        with service() as address:
            ingest(documents, address)
            results = [ask_both_ways(question, documents, bundle, address) for question in QUESTIONS]
        show(results, time.monotonic() - started)
    except StepFailed as failure:
        console.print(f"[bold red]failed:[/] {failure}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("[bold red]interrupted[/]; the service is stopped, `make demo` starts anew")
        return 130
    return 0


def export(bundle: Path) -> None:
    """Makes the bundle unless there is one that is newer than the model's own files."""
    manifest = bundle / "manifest.json"
    newest = max((path.stat().st_mtime for path in ASSETS.rglob("*") if path.is_file()), default=0.0)
    if manifest.is_file() and manifest.stat().st_mtime >= newest:
        console.print(
            f"bundle     {bundle.relative_to(ROOT) if bundle.is_relative_to(ROOT) else bundle} is up to date"
        )
        return
    with step("bundle", "decoder, embedder and codec as files for the device"):
        run("memory-model", "export", "--out", bundle)


def choose_documents(*, full: bool) -> dict[str, dict[str, Any]]:
    """The countries to ingest, by key; raises StepFailed unless the questions' countries were held out of tuning."""
    countries = {
        country["key"]: country for country in map(json.loads, KNOWLEDGE.read_text("utf-8").splitlines())
    }
    held_out = set(json.loads(HELD_OUT.read_text("utf-8")))
    asked = [question.key for question in QUESTIONS]
    if not held_out.issuperset(asked):
        raise StepFailed(f"{HELD_OUT.name} no longer lists {asked}: choose other questions in deploy/demo.py")
    chosen = countries if full else {key: countries[key] for key in (*asked, *NEIGHBOURS)}
    lines = (json.dumps(country, ensure_ascii=False) for country in chosen.values())
    (WORK / "documents.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return chosen


@contextmanager
def service() -> Iterator[str]:
    """A running service on a free port, as its address; stopped with SIGTERM, which must end it with exit code 0."""
    port_file, log = WORK / "port", WORK / "service.log"
    command = [
        str(PROGRAMS / "memory-service"),
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--port-file",
        str(port_file),
    ]
    with (
        step("service", "embedded ClickHouse store, model and embedder on a free port"),
        log.open("wb") as output,
    ):
        store = f"chdb://{WORK / 'store'}"
        process = subprocess.Popen(
            [*command, "--store", store], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
        )
        try:
            address = wait_until_ready(process, port_file, log)
        except BaseException:
            process.kill()
            process.wait()
            raise
    try:
        yield address
    except BaseException:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    with step("stop", "SIGTERM: finish what is under way, close the store"):
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise StepFailed(f"the service did not stop within {STOP_TIMEOUT_S:.0f} s; see {log}") from None
        if code != 0:
            raise StepFailed(f"the service stopped with exit code {code}; see {log}")


def wait_until_ready(process: subprocess.Popen[bytes], port_file: Path, log: Path) -> str:
    """The address of the service, once it says that it serves."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StepFailed(f"the service ended with exit code {process.returncode} at its start; see {log}")
        if port_file.is_file() and (port := port_file.read_text().strip()):
            address = f"127.0.0.1:{port.rpartition(':')[2]}"
            try:
                with grpc.insecure_channel(address) as channel:
                    answer = health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(), timeout=2.0
                    )
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return address
            except grpc.RpcError:
                pass  # not listening yet
        time.sleep(0.2)
    raise StepFailed(f"the service was not ready within {START_TIMEOUT_S:.0f} s; see {log}")


def ingest(documents: dict[str, dict[str, Any]], address: str) -> None:
    """Sends the documents over gRPC; the command returns when all are acknowledged."""
    with step("ingest", f"{len(documents)} countries over gRPC to {address}"):
        run("memory-service", "ingest", WORK / "documents.jsonl", "--address", address)


def ask_both_ways(
    question: Question, documents: dict[str, dict[str, Any]], bundle: Path, address: str
) -> dict[str, Any]:
    """The question, what the document says, and the device's two answers."""
    lines = documents[question.key]["text"].splitlines()
    expected = next(
        (line.partition(": ")[2] for line in lines if line.startswith(f"{question.field}: ")), None
    )
    if expected is None:
        raise StepFailed(f"{KNOWLEDGE.name}, {question.key}: no line {question.field!r}")
    answers = {}
    with step("ask", question.text):
        for memory in ("off", "on"):
            output = run(
                *("edge-client", "ask", question.text),
                *("--bundle", bundle, "--address", address, "--memory", memory, "--json"),
                log=WORK / f"ask-{question.key}-{memory}.log",
            )
            try:
                answers[memory] = json.loads(output)
            except json.JSONDecodeError as error:
                raise StepFailed(f"edge-client ask printed no JSON ({error}): {output[:200]!r}") from error
    if not answers["on"]["memories"]:
        raise StepFailed(f"no memory was read for {question.text!r}; see {WORK / 'service.log'}")
    return {"question": question.text, "expected": expected, "without": answers["off"], "with": answers["on"]}


def show(results: list[dict[str, Any]], seconds: float) -> None:
    """The final table."""
    table = Table(title="Countries that the model was not tuned on", show_lines=True)
    for column in (
        "question",
        "expected",
        "without memory",
        "with memory",
        "memories read",
        "tokens/s without / with",
    ):
        table.add_column(column, justify="right" if "tokens" in column else "left")
    for result in results:
        without, with_memory = result["without"], result["with"]
        titles = [f"{memory['title']} ({memory['score']:.2f})" for memory in with_memory["memories"]]
        table.add_row(
            result["question"],
            result["expected"],
            without["text"].strip(),
            with_memory["text"].strip(),
            "\n".join(titles),
            f"{without['tokens_per_s']:.0f} / {with_memory['tokens_per_s']:.0f}",
        )
    console.print(table)
    console.print(f"done in {seconds:.0f} s; logs and the store are in {WORK.relative_to(ROOT)}/")


def run(program: str, *arguments: object, log: Path | None = None) -> str:
    """Runs one of our commands; raises StepFailed unless it exits with 0.

    With `log` its output is kept there and its stdout returned; without, it shows its own progress on the terminal.
    """
    command = [str(PROGRAMS / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=log is not None, text=True, cwd=ROOT)
    if log is not None:
        log.write_text(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}", encoding="utf-8")
    if done.returncode != 0:
        last_words = "\n".join((done.stderr or "").strip().splitlines()[-3:])
        where = f"see {log}\n{last_words}" if log else "see above"
        raise StepFailed(f"{program} {arguments[0]} exited with {done.returncode}; {where}")
    return done.stdout or ""


@contextmanager
def step(name: str, what: str) -> Iterator[None]:
    """Says that a step begins, and how long it took."""
    console.print(f"[bold]{name}[/]: {what}", highlight=False)
    began = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - began:.1f} s[/]", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
