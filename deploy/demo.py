"""`make demo`: the whole way through the real commands, each in a process of its own.

Export the bundle, start the service with an embedded store, ingest countries over gRPC, ask about countries that were
held out of tuning, each question without and with memory, stop the service. A failure exits with 1 and says what to do.
"""

from __future__ import annotations

import argparse
import io
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
from rich.text import Text

from deploy.default_bundle import ensure
from memory3.refusal import SENTENCE
from testing.processes import PROGRAMS, ProcessFailed, ServiceProcess

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "demo"
KNOWLEDGE = ROOT / "data" / "factbook.jsonl"
HELD_OUT = ROOT / "data" / "heldout.json"

console = Console(width=120 if not sys.stdout.isatty() else None, highlight=False)
Documents = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class DemoQuestion:
    """A question about the country `key`; the line `field` of its document holds the answer, None where none does."""

    key: str
    text: str
    field: str | None


# Countries that the model was not tuned on, each with neighbours that have the same kind of lines.
QUESTIONS = (
    DemoQuestion("bn", "What is the highest point of Benin?", "Elevation extremes - highest point"),
    DemoQuestion("mv", "What are the national symbols of Maldives?", "National symbol(s)"),
    DemoQuestion("tu", "What is the population of Turkey?", "Population"),
    # Nothing answers it: nine of the other countries have such a line, this one has none.
    DemoQuestion("mv", "What is the public debt of Maldives?", None),
)
NEIGHBOURS = ("to", "ng", "ni", "in", "ce", "mp", "bu", "gr", "gg")


def main() -> int:
    """Runs all steps and returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bundle", type=Path, default=ROOT / "build" / "bundle", help="folder of the edge bundle")
    arguments.add_argument("--full", action="store_true", help="ingest all countries, not a part")
    options = arguments.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # progress appears in a file or a pipe, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the service does not outlive this
    started = time.monotonic()
    try:
        results = walk(options.bundle.resolve(), full=options.full)
    except (ProcessFailed, subprocess.CalledProcessError) as failure:
        console.print(f"[bold red]failed:[/] {failure}")
        return 1
    except KeyboardInterrupt:
        console.print("[bold red]interrupted[/]; the service is stopped, `make demo` starts anew")
        return 130
    show(results)
    seconds = time.monotonic() - started
    console.print(f"done in {seconds:.0f} s; logs and the store are in {WORK.relative_to(ROOT)}/")
    return 0


def walk(bundle: Path, *, full: bool) -> list[dict[str, Any]]:
    """All steps; the answers to all questions."""
    with step("bundle", "decoder, embedder and codec as files for the device; made anew when the model changed"):
        ensure(bundle)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    documents = choose_documents(full=full)
    with step("service", "model, embedder and embedded ClickHouse store on a free port"):
        service = ServiceProcess.start(WORK, bundle)
    with service:
        with step("ingest", f"{len(documents)} countries over gRPC to {service.address}"):
            run("memory-service", "ingest", WORK / "documents.jsonl", "--address", service.address)
        results = [ask_both_ways(question, documents, bundle, service.address) for question in QUESTIONS]
        console.print("[bold]stop[/]: SIGTERM: the service finishes what is under way and closes the store")
    return results


def choose_documents(*, full: bool) -> Documents:
    """The countries to ingest, by key; raises ProcessFailed unless the questions' countries were held out of tuning."""
    countries = {c["key"]: c for c in map(json.loads, KNOWLEDGE.read_text("utf-8").splitlines())}
    held_out = {country["key"] for country in json.loads(HELD_OUT.read_text("utf-8"))}
    needed = [question.key for question in QUESTIONS]
    if not held_out.issuperset(needed):
        raise ProcessFailed(f"{HELD_OUT.name} no longer lists {needed}: choose other questions in deploy/demo.py")
    chosen = countries if full else {key: countries[key] for key in (*needed, *NEIGHBOURS)}
    lines = (json.dumps(country, ensure_ascii=False) for country in chosen.values())
    (WORK / "documents.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return chosen


def ask_both_ways(question: DemoQuestion, documents: Documents, bundle: Path, address: str) -> dict[str, Any]:
    """The question, what the document says, and the device's two answers."""
    expected = SENTENCE
    if question.field is not None:
        lines = documents[question.key]["text"].splitlines()
        expected = next(text for name, _, text in (line.partition(": ") for line in lines) if name == question.field)
    log = WORK / f"ask-{QUESTIONS.index(question) + 1}.log"
    with step("ask", question.text):
        output = run(
            *("edge-client", "ask", question.text),
            *("--bundle", bundle, "--service", address, "--memory", "compare", "--json"),
            log=log,
        )
    answers: dict[str, Any] = json.loads(output)
    if not memories_of(answers["with_memory"]):
        errors = ", ".join(chunk["error"] for chunk in answers["with_memory"]["memories"] if chunk["error"])
        raise ProcessFailed(f"no memory was read for {question.text!r}: {errors or 'none was found'}; see {log}")
    return {"question": question.text, "expected": expected, **answers}


def memories_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The memories that an answer read, each once."""
    read = (memory for chunk in answer["memories"] for memory in chunk["read"] if not memory["refused"])
    return list({memory["memory_id"]: memory for memory in read}.values())


def show(results: list[dict[str, Any]]) -> None:
    """The final table."""
    columns = ("question", "expected", "without memory", "with memory", "memories read, by reference number")
    table = Table(*columns, title="Countries that the model was not tuned on", show_lines=True)
    table.add_column("tokens/s without, with", justify="right", max_width=10)
    for result in results:
        pair = result["without_memory"], result["with_memory"]
        memories = memories_of(pair[1])
        numbers: dict[str, str] = {}
        for memory in memories:
            title = memory["title"]
            numbers[title] = f"{numbers.get(title, title)} #{memory['chunk_number']}"
        names = f"{', '.join(numbers.values())}; best score {max(m['score'] for m in memories):.2f}"
        speeds = ", ".join(f"{answer['statistics']['tokens_per_s']:.0f}" for answer in pair)
        answers = [answer["answer"].strip() for answer in pair]
        table.add_row(*map(Text, (result["question"], result["expected"], *answers, names, speeds)))
    console.print(table)


def run(program: str, *arguments: object, log: Path | None = None) -> str:
    """Runs one of our commands; raises ProcessFailed unless it exits with 0.

    With `log` its output is kept there and its stdout returned; without, it shows its own progress on the terminal.
    """
    command = [str(PROGRAMS / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=log is not None, text=True, cwd=ROOT)
    if log is not None:
        log.write_text(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}", encoding="utf-8")
    if done.returncode != 0:
        last_words = "\n".join((done.stderr or "").strip().splitlines()[-3:])
        where = f"see {log}\n{last_words}" if log else "see above"
        raise ProcessFailed(f"{program} {arguments[0]} exited with {done.returncode}; {where}")
    return done.stdout or ""


@contextmanager
def step(name: str, what: str) -> Iterator[None]:
    """Says that a step begins, and how long it took."""
    console.print(f"[bold]{name}[/]: {what}")
    began = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - began:.1f} s[/]")


if __name__ == "__main__":
    sys.exit(main())
