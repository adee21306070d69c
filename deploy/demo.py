"""`make demo`: the whole way: the service and each command in a process of its own, the device by its SDK in this one.

Export the bundle, start the service with an embedded store, ingest over gRPC, open the bundle as a chat app does, ask
each question without and with memory, stop the service. Models are asked about an invented page of prose, the tiny one,
which reads facts, about countries that were held out of its tuning. Each answer is marked right or wrong. A failure
exits with 1 and says what to do.
"""

from __future__ import annotations

import argparse
import io
import json
import re
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
from edge_client import EdgeModel, Memory3Error, RecallMode
from edge_client.cli.options import as_json
from memory3.text.refusal import SENTENCE
from memory_model.catalogue.table import PREFIX
from memory_model.defaults import ASSETS, MODEL, TINY
from memory_model.eval.scores import contained
from memory_model.models.folder import ModelFolder
from testing.processes import PROGRAMS, ProcessFailed, ServiceProcess
from testing.programs import ROOT

WORK = ROOT / "build" / "demo"
KNOWLEDGE = ROOT / "data" / "factbook.jsonl"
HELD_OUT = ROOT / "data" / "heldout.json"
PAGE = ROOT / "data" / "lighthouse.md"

console = Console(width=120 if not sys.stdout.isatty() else None, highlight=False)


@dataclass(frozen=True)
class DemoQuestion:
    """A question; expected: what the documents say, `SENTENCE` where they do not say it.

    needed: the words that make an answer right; by default what is expected, without a list's rest and remarks.
    """

    text: str
    expected: str
    needed: str = ""

    def answered_by(self, answer: dict[str, Any]) -> bool:
        """Whether an answer is right: it has the needed words, or is a refusal where the documents say nothing."""
        if self.expected == SENTENCE:
            return bool(answer["refused"])
        needed = self.needed or re.split(r"[;,] | \(", self.expected)[0]
        return bool(contained(answer["answer"], needed))


@dataclass(frozen=True)
class Walk:
    """What a demo ingests and asks."""

    title: str
    documents: Path
    questions: tuple[DemoQuestion, ...]


# Countries that the tiny model was not tuned on, each with neighbours that have the same kind of lines: key,
# question, and the line that holds the answer. Nothing answers the last one: nine of the others have such a line.
COUNTRIES = (
    ("bn", "What is the highest point of Benin?", "Elevation extremes - highest point"),
    ("mv", "What are the national symbols of Maldives?", "National symbol(s)"),
    ("tu", "What is the population of Turkey?", "Population"),
    ("mv", "What is the public debt of Maldives?", None),
)
NEIGHBOURS = ("to", "ng", "ni", "in", "ce", "mp", "bu", "gr", "gg")
# In the page's own words, in others (the crossing, the quay), and what the page does not say.
ABOUT_THE_PAGE = (
    DemoQuestion("When was the lighthouse of Skarnholm built?", "1884"),
    DemoQuestion("How far can the lamp of Skarnholm be seen?", "nineteen sea miles", "nineteen"),
    DemoQuestion("Who rescued the fishermen near Skarnholm?", "Ragna Amdal"),
    DemoQuestion("How much is the boat to the lighthouse of Skarnholm?", "120 crowns; children under seven go free"),
    DemoQuestion("Where do I have to leave my dog at Skarnholm?", "on the quay", "quay"),
    DemoQuestion("When can I eat waffles at Skarnholm?", "when the flag is up", "flag is up"),
    DemoQuestion("How high is the tower of Skarnholm?", SENTENCE),
)


def main() -> int:
    """Runs all steps and returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bundle", type=Path, default=ROOT / "build" / "bundle", help="folder of the edge bundle")
    arguments.add_argument("--model", default=MODEL, help="packaged model; `memory-model list` shows them")
    arguments.add_argument("--full", action="store_true", help="ingest all countries, not a part")
    options = arguments.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # progress appears in a file or a pipe, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the service does not outlive this
    started = time.monotonic()
    try:
        done = run_walk(options.bundle.resolve(), options.model, full=options.full)
    except (ProcessFailed, Memory3Error) as failure:
        console.print(f"[bold red]failed:[/] {failure}")
        return 1
    except KeyboardInterrupt:
        console.print("[bold red]interrupted[/]; the service is stopped, `make demo` starts anew")
        return 130
    show(*done)
    seconds = time.monotonic() - started
    console.print(f"done in {seconds:.0f} s; logs and the store are in {WORK.relative_to(ROOT)}/")
    return 0


def run_walk(bundle: Path, model: str, *, full: bool) -> tuple[Walk, list[dict[str, Any]]]:
    """All steps; the answers to all questions."""
    base = ModelFolder.open(model).base
    if base.startswith(PREFIX):
        with step("model", f"{model}: fetched once into the cache of this user, and checked by its SHA-256"):
            run("memory-model", "pull", "--quiet", base.removeprefix(PREFIX))
    with step("bundle", "decoder, embedder and codec as files for the device; made anew when the model changed"):
        ensure(bundle, model)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    walk = countries(full=full) if model == TINY else Walk("A page that no model has seen", PAGE, ABOUT_THE_PAGE)
    with step("service", "model, embedder and store on a free port"):
        service = ServiceProcess.start(WORK, bundle, model=ASSETS / model)
    with service:
        with step("ingest", f"{walk.documents.name} over gRPC to {service.address}"):
            run("memory-service", "ingest", walk.documents, "--address", service.address)
        with step("device", "opens the bundle, once for all questions"):
            device = EdgeModel.open(bundle, service.address, local=WORK / "local")  # not what the user remembers
        with device:
            results = [ask_both_ways(device, question) for question in walk.questions]
        console.print("[bold]stop[/]: SIGTERM: the service finishes what is under way and closes the store")
    return walk, results


def countries(*, full: bool) -> Walk:
    """Countries as documents of facts; raises ProcessFailed unless those asked about were held out of tuning."""
    every = {c["key"]: c for c in map(json.loads, KNOWLEDGE.read_text("utf-8").splitlines())}
    held_out = {country["key"] for country in json.loads(HELD_OUT.read_text("utf-8"))}
    needed = [key for key, _, _ in COUNTRIES]
    if not held_out.issuperset(needed):
        raise ProcessFailed(f"{HELD_OUT.name} no longer lists {needed}: choose other questions in deploy/demo.py")
    chosen = every if full else {key: every[key] for key in (*needed, *NEIGHBOURS)}
    documents = WORK / "countries.jsonl"
    lines = (json.dumps(country, ensure_ascii=False) for country in chosen.values())
    documents.write_text("\n".join(lines) + "\n", encoding="utf-8")
    questions = []
    for key, text, field in COUNTRIES:
        facts = dict(line.partition(": ")[::2] for line in every[key]["text"].splitlines())
        questions.append(DemoQuestion(text, facts[field] if field else SENTENCE))
    return Walk("Countries that the model was not tuned on", documents, tuple(questions))


def ask_both_ways(device: EdgeModel, question: DemoQuestion) -> dict[str, Any]:
    """The device's two answers, as `edge-client ask --memory compare --json` prints them."""
    with step("ask", question.text):
        answers = {"without_memory": as_json(device.ask(question.text, memory=RecallMode.off))}
        answers["with_memory"] = as_json(device.ask(question.text))
    if not memories_of(answers["with_memory"]):
        errors = ", ".join(chunk["error"] for chunk in answers["with_memory"]["memories"] if chunk["error"])
        raise ProcessFailed(f"no memory was read for {question.text!r}: {errors or 'none was found'}")
    mark = marked(question, answers["with_memory"])
    console.print(Text.assemble("  expected: ", question.expected, "; with memory: ", mark))
    return answers


def memories_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The memories that an answer read, each once."""
    read = (memory for chunk in answer["memories"] for memory in chunk["read"] if not memory["refused"])
    return list({memory["memory_id"]: memory for memory in read}.values())


def marked(question: DemoQuestion, answer: dict[str, Any]) -> Text:
    """The answer after `right` or `wrong`."""
    mark = ("right", "green") if question.answered_by(answer) else ("wrong", "red")
    return Text.assemble(mark, ": ", answer["answer"].strip())


def show(walk: Walk, results: list[dict[str, Any]]) -> None:
    """The final table, and how many answers are right."""
    columns = ("question", "expected", "without memory", "with memory", "memories read, by reference number")
    table = Table(*columns, title=walk.title, show_lines=True)
    table.add_column("tokens/s without, with", justify="right", max_width=10)
    for question, result in zip(walk.questions, results, strict=True):
        pair = result["without_memory"], result["with_memory"]
        memories = memories_of(pair[1])
        numbers: dict[str, str] = {}
        for memory in memories:
            title = memory["title"]
            numbers[title] = f"{numbers.get(title, title)} #{memory['chunk_number']}"
        names = f"{', '.join(numbers.values())}; best score {max(m['score'] for m in memories):.2f}"
        speeds = ", ".join(f"{answer['statistics']['tokens_per_s']:.0f}" for answer in pair)
        answers = (marked(question, answer) for answer in pair)
        table.add_row(Text(question.text), Text(question.expected), *answers, Text(names), speeds)
    console.print(table)
    for which in ("without_memory", "with_memory"):
        right = sum(q.answered_by(result[which]) for q, result in zip(walk.questions, results, strict=True))
        console.print(f"{which.replace('_', ' ')}: {right} of {len(results)} right")


def run(program: str, *arguments: object) -> None:
    """Runs one of our commands, which shows its own progress; raises ProcessFailed unless it exits with 0."""
    done = subprocess.run([str(PROGRAMS / program), *map(str, arguments)], cwd=ROOT)
    if done.returncode != 0:
        raise ProcessFailed(f"{program} {arguments[0]} exited with {done.returncode}; see above")


@contextmanager
def step(name: str, what: str) -> Iterator[None]:
    """Says that a step begins, and how long it took."""
    console.print(f"[bold]{name}[/]: {what}")
    began = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - began:.1f} s[/]")


if __name__ == "__main__":
    sys.exit(main())
