"""`edge-client`: ask once, chat, serve, or check this device. Standard output is the answer; all else is around it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from edge_client.cli import show
from edge_client.cli.chat import COMMANDS, Memory, TerminalChat
from edge_client.cli.doctor import build, doctor
from edge_client.cli.options import BundleOption, KnowledgeBaseOption, ServiceOption
from edge_client.cli.pull import pull
from edge_client.cli.terminal import TypedAtTerminal, TypedLines, at_terminal, history_file
from edge_client.errors import MENDABLE, described
from edge_client.events import Result
from edge_client.generate.sampling import Sampling, SamplingOptions
from edge_client.model import EdgeModel
from edge_client.serve.command import serve
from edge_client.settings import EdgeOptions
from memory_model.errors import InvalidInput, Memory3Error
from memory_model.formats import find_sources, read_documents
from memory_model.printable import printable, shown_on

EXIT_CODES = (
    "Exit codes: 0 an answer was given, also without memories when the service is down (with a warning); "
    "1 bundle, question or setting is wrong; 2 wrong usage; 3 no memory could be had although --require-memory was "
    "given, or for a reason that lasts until you change something, such as another model's service, an unknown "
    "knowledge base or a missing API key; 130 interrupted."
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXIT_CODES)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Command = Callable[..., None]


@app.callback()
def main() -> None:
    """A language model on this device that reads explicit memories from a service.

    First steps:  edge-client pull --service HOST:PORT   fetches the model,
                  edge-client doctor                     says what works and what does not,
                  edge-client ask "…"                    answers and shows what was read,
                  edge-client chat                       talks.

    Every setting can also be given as an environment variable EDGE_CLIENT_*, e.g. EDGE_CLIENT_SERVICE.
    """


def _opened(
    bundle: BundleOption = None,
    service: ServiceOption = None,
    knowledge_base: KnowledgeBaseOption = None,
    memory: Annotated[
        Memory | None,
        typer.Option(
            "--memory",
            help="overlap decodes while memories are recalled, exact waits for them, off reads none, compare answers "
            "twice, without and with. [default: overlap]",
        ),
    ] = None,
    lead_tokens: Annotated[
        int | None,
        typer.Option(
            "--lead", min=0, help="Tokens before a chunk's end at which overlap recalls. [default: 16]"
        ),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(
            "--pack", help="Folder of a memory pack, read when the service is away. [default: none]"
        ),
    ] = None,
    offline: Annotated[
        bool | None,
        typer.Option("--offline", help="Never call the service; with --pack, read that.", show_default=False),
    ] = None,
) -> tuple[EdgeOptions, Memory | None]:
    """Options of `EdgeModel.open`, and how memories are read."""
    mode = None if memory is None or memory is Memory.compare else memory.value
    given: dict[str, Any] = {
        "bundle": bundle, "service": service, "knowledge_base": knowledge_base, "memory": mode,
        "lead_tokens": lead_tokens, "pack": pack, "offline": offline,
    }  # fmt: skip
    return given, memory  # type: ignore[return-value]  # bundle and service are arguments of their own


def _drawn(
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Longest answer.")
    ] = Sampling.max_tokens,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Draw from this many likeliest tokens; 0 from all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Draw from the likeliest tokens that reach this.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="Draw from tokens this many times as likely as the likeliest.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        typer.Option("--repetition-penalty", help="Above 1 makes tokens of the text so far unlikelier."),
    ] = 1.0,
    frequency_penalty: Annotated[
        float,
        typer.Option("--frequency-penalty", help="-2 to 2, for every time a token was in the text so far."),
    ] = 0.0,
    presence_penalty: Annotated[
        float,
        typer.Option("--presence-penalty", help="-2 to 2, once for a token that was in the text so far."),
    ] = 0.0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End before this text; may be given again.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Makes drawing repeatable.")] = None,
) -> SamplingOptions:
    """Options of an answer."""
    return {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty, "stop": stop or [], "seed": seed,
    }  # fmt: skip


def _with_options(command: Command) -> Command:
    """A command with the options of `_opened` and `_drawn`, whose results it gets as `opened` and `drawn`."""

    @wraps(command)
    def run(**given: Any) -> None:
        for name, collect in (("opened", _opened), ("drawn", _drawn)):
            own = {option: given.pop(option) for option in inspect.signature(collect).parameters}
            given[name] = collect(**own)
        command(**given)

    functions = (command, _opened, _drawn)
    hints = {n: t for f in functions for n, t in get_type_hints(f, include_extras=True).items()}
    parameters = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name])
        for f in functions
        for p in inspect.signature(f).parameters.values()
        if p.name not in ("opened", "drawn")
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _complain(what: str) -> None:
    """One line, never wrapped: it may hold a command to copy."""
    err.print(Text(printable(what), style="red"), soft_wrap=True)


@contextmanager
def _reported() -> Iterator[None]:
    """Errors of ours as one line and exit code 1, Ctrl-C as 130; a traceback only for bugs."""
    try:
        yield
    except Memory3Error as error:
        _complain(described(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


@app.command(epilog=EXIT_CODES)
@_with_options
@_reported()
def ask(
    question: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    opened: tuple[EdgeOptions, Memory | None],
    drawn: SamplingOptions,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="A text, Markdown, HTML, PDF or table to ask about; a long one is written as memories first.",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    require_memory: Annotated[
        bool, typer.Option("--require-memory", help="Exit with 3 if memories could not be had.")
    ] = False,
) -> None:
    """Answer one question, and show which memories were read and what it cost."""
    if question == "-":
        question = sys.stdin.read()
    if not question.strip():
        raise InvalidInput("the question is empty: give it as an argument, or - to read standard input")
    options, memory = opened
    title, text = ("", "") if file is None else _document(file)
    results = {}
    with EdgeModel.open(**options) as model:
        for mode in ["off", None] if memory is Memory.compare else [None]:
            if memory is Memory.compare and not json_output:
                out.rule("without memory" if mode == "off" else "with memory", align="left")
            with err.status("") as status:

                def progress(done: int, of: int, status: Status = status) -> None:
                    status.update(f"remembering {file}: {done} of {of} references")

                stream = model.generate(
                    question, memory=mode, document=text, title=title, progress=progress, **drawn
                )
            if not json_output:
                for delta in stream.deltas:
                    print(shown_on(sys.stdout, delta), end="", flush=True)
                print(flush=True)
                _around(stream.result())
            results["without_memory" if mode == "off" else "with_memory"] = stream.result()
    if json_output:
        shown = {name: show.as_json(result) for name, result in results.items()}
        only = shown if memory is Memory.compare else next(iter(shown.values()))
        print(json.dumps(only, ensure_ascii=False, indent=2))
    for result in results.values():
        lasting = [] if result.memories else [e for e in result.errors if e.partition(":")[0] in MENDABLE]
        if lasting:
            _complain(f"no memory could be read, and none will be until this is mended: {lasting[0]}")
        elif result.without_memory and require_memory:
            _complain("--require-memory: memories could not be had")
        else:
            continue
        raise typer.Exit(3)


@app.command(epilog=EXIT_CODES)
@_with_options
@_reported()
def chat(opened: tuple[EdgeOptions, Memory | None], drawn: SamplingOptions) -> None:
    """Talk; every turn reads memories, and only what is new is computed. Ctrl-C stops an answer, not the program.

    In a terminal: Enter sends, Alt-Enter begins a line, arrow keys and Ctrl-R find what was typed before, and beside
    an answer stands which memories each chunk reads. Commands: /kb [NAME,…], /memory overlap|exact|off|compare, /retry,
    /add FILE, /memories, /stats, /history, /save FILE, /load FILE, /reset, /help, /quit.
    """
    options, memory = opened
    live = at_terminal()
    typed = TypedAtTerminal(COMMANDS, history_file()) if live else TypedLines()
    conversation = TerminalChat(EdgeModel.open(**options), drawn, memory, live=live, out=out, err=err)
    try:
        conversation.run(typed)
    finally:
        conversation.close()


def _document(file: Path) -> tuple[str, str]:
    """Title and text of a file; one that holds several documents is their texts, each under its title."""
    documents = [document for source in find_sources([file]) for document in read_documents(source)]
    if unreadable := [d for d in documents if d.unreadable]:
        raise InvalidInput(f"{unreadable[0].where}: {unreadable[0].unreadable}")
    if len(documents) == 1:
        return documents[0].title, documents[0].text
    return file.name, "\n\n".join(f"{d.title}\n{d.text}" for d in documents)


def _around(result: Result) -> None:
    """What is not the answer goes to standard error: warnings, memories, statistics."""
    if result.without_memory:
        which = "without the memories of some chunks" if result.memories else "without memory"
        err.print(f"[yellow]answered {which}; why:[/]")
    if result.recalls:
        err.print(show.memories_table(result.recalls))
    err.print(show.statistics_table(result, result.recalls))


for command in (doctor, build, pull, serve):
    app.command(epilog=EXIT_CODES)(_reported()(command))

if __name__ == "__main__":
    app()
