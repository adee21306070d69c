"""`edge-client`: ask once, chat, or check this device. Standard output is the answer; all else is around it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from edge_client.cli import device_commands, show
from edge_client.cli.chat import COMMANDS, Memory, TerminalChat, at_terminal, chatting
from edge_client.cli.pull import pull
from edge_client.events import Finished, Recalled, Token
from edge_client.generate.options import SamplingOptions
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from edge_client.serve.command import serve
from memory_model.errors import InvalidInput, Memory3Error
from memory_model.printable import printable, shown_on

EXIT_CODES = (
    "Exit codes: 0 an answer was given, also without memories when the service is down (with a warning); "
    "1 bundle, question or setting is wrong; 2 wrong usage; 3 memories were required and could not be had; "
    "130 interrupted."
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=EXIT_CODES)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


BundleOption = Annotated[
    Path | None, typer.Option("--bundle", help="Folder of the edge bundle. [default: build/bundle]")
]
ServiceOption = Annotated[
    str | None, typer.Option("--service", help="host:port of the service. [default: 127.0.0.1:7430]")
]
BaseOption = Annotated[
    str | None,
    typer.Option(
        "--knowledge-base", "--kb", help="Whose memories are read; several as a,b. [default: default]"
    ),
]
RecallOption = Annotated[
    RecallMode | None,
    typer.Option(
        "--recall", help="overlap decodes on, exact waits for memories, off has none. [default: overlap]"
    ),
]
LeadOption = Annotated[
    int | None,
    typer.Option("--lead", min=0, help="Tokens before a chunk's end at which overlap asks. [default: 16]"),
]
PackOption = Annotated[
    Path | None,
    typer.Option("--pack", help="Folder of a memory pack, read when the service is away. [default: none]"),
]
OfflineOption = Annotated[
    bool | None,
    typer.Option("--offline", help="Never ask the service; with --pack, read that.", show_default=False),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer.")]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token.")]
TopK = Annotated[
    int, typer.Option("--top-k", min=0, help="Draw from this many likeliest tokens; 0 from all.")
]
TopP = Annotated[float, typer.Option("--top-p", help="Draw from the likeliest tokens that reach this.")]
MinP = Annotated[
    float, typer.Option("--min-p", help="Draw from tokens this many times as likely as the likeliest.")
]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1 makes tokens of the text so far unlikelier.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="-2 to 2, for every time a token was in the text so far.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="-2 to 2, once for a token that was in the text so far.")
]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be given again.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Makes drawing repeatable.")]


@app.callback()
def main() -> None:
    """A language model on this device that reads explicit memories from a service.

    Every setting can also be given as an environment variable EDGE_CLIENT_*, e.g. EDGE_CLIENT_SERVICE.
    """


@app.command(epilog=EXIT_CODES)
def ask(
    question: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    bundle: BundleOption = None,
    service: ServiceOption = None,
    knowledge_base: BaseOption = None,
    memory: Annotated[Memory, typer.Option(help="compare answers twice, without and with.")] = Memory.on,
    recall: RecallOption = None,
    lead: LeadOption = None,
    pack: PackOption = None,
    offline: OfflineOption = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    presence_penalty: PresencePenalty = 0.0,
    stop: Stop = None,
    seed: Seed = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    require_memory: Annotated[
        bool, typer.Option("--require-memory", help="Exit with 3 if memories could not be had.")
    ] = False,
) -> None:
    """Answer one question, and show which memories were read and what it cost."""
    with _reported():
        if question == "-":
            question = sys.stdin.read()
        if not question.strip():
            raise InvalidInput("the question is empty: give it as an argument, or - to read standard input")
        options: SamplingOptions = {
            "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "repetition_penalty": repetition_penalty, "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty, "stop": stop or [], "seed": seed,
        }  # fmt: skip
        results = {}
        with EdgeModel.open(
            bundle,
            service,
            knowledge_base=knowledge_base,
            recall=recall,
            lead_tokens=lead,
            pack=pack,
            offline=offline,
        ) as model:
            for with_memory in {"on": [True], "off": [False], "compare": [False, True]}[memory.value]:
                if memory is Memory.compare and not json_output:
                    out.rule(f"{'with' if with_memory else 'without'} memory", align="left")
                events = model.generate(question, memory=with_memory, **options)
                finished, recalls = _follow(events, silent=json_output)
                results["with_memory" if with_memory else "without_memory"] = show.as_json(finished, recalls)
                if not json_output:
                    _around(finished, recalls)
        if json_output:
            shown = results if memory is Memory.compare else next(iter(results.values()))
            print(json.dumps(shown, ensure_ascii=False, indent=2))
        missing = any(r["without_memory"] for r in results.values())
        if missing and require_memory:
            _complain("--require-memory", "memories could not be had, exit code 3")
            raise typer.Exit(3)


@app.command(epilog=EXIT_CODES)
def chat(
    bundle: BundleOption = None,
    service: ServiceOption = None,
    knowledge_base: BaseOption = None,
    memory: Annotated[Memory, typer.Option(help="compare answers twice, without and with.")] = Memory.on,
    recall: RecallOption = None,
    lead: LeadOption = None,
    pack: PackOption = None,
    offline: OfflineOption = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    presence_penalty: PresencePenalty = 0.0,
    stop: Stop = None,
    seed: Seed = None,
) -> None:
    """Talk; every turn reads memories, and only what is new is computed. Ctrl-C stops an answer, not the program.

    In a terminal: Enter sends, Alt-Enter begins a line, arrow keys and Ctrl-R find what was typed before, and beside
    an answer stands which memories each chunk reads. Commands: /kb [NAME,…], /memory on|off|compare, /retry, /add FILE,
    /memories, /stats, /history, /save FILE, /load FILE, /reset, /help, /quit.
    """
    options: SamplingOptions = {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty, "stop": stop or [], "seed": seed,
    }  # fmt: skip

    with _reported():
        from edge_client.cli.input import TypedAtTerminal, TypedLines, history_file

        live = at_terminal()
        typed = TypedAtTerminal(COMMANDS, history_file()) if live else TypedLines()
        model = EdgeModel.open(
            bundle, service, knowledge_base=knowledge_base, recall=recall, lead_tokens=lead, pack=pack, offline=offline
        )  # fmt: skip
        with chatting(TerminalChat(model, options, memory, live=live, out=out, err=err)) as conversation:
            conversation.run(typed)


def _follow(events: Iterator[Any], *, silent: bool = False) -> tuple[Finished, list[Recalled]]:
    """Print tokens as they come; return the end of the answer and its recalls."""
    recalls: list[Recalled] = []
    for event in events:
        if isinstance(event, Recalled):
            recalls.append(event)
        elif isinstance(event, Token) and not silent:
            print(shown_on(sys.stdout, event.text), end="", flush=True)
        elif isinstance(event, Finished):
            if not silent:
                print(flush=True)
            return event, recalls
    raise AssertionError("an answer always ends with Finished")


def _around(finished: Finished, recalls: Sequence[Recalled]) -> None:
    """What is not the answer goes to standard error: warnings, memories, statistics."""
    if finished.without_memory:
        none = not any(r.recall.memories for r in recalls)
        which = "without memory" if none else "without the memories of some chunks"
        err.print(f"[yellow]answered {which}; why:[/]")
    if recalls:
        err.print(show.memories_table(recalls))
    err.print(show.statistics_table(finished, recalls))


def _complain(what: str, message: str) -> None:
    """One line, never wrapped: it may hold a command to copy."""
    err.print(Text.assemble((f"{what}:", "red"), f" {printable(message)}"), soft_wrap=True)


@contextmanager
def _reported() -> Iterator[None]:
    """Errors of ours as one line and exit code 1, Ctrl-C as 130; a traceback only for bugs."""
    try:
        yield
    except Memory3Error as error:
        _complain(type(error).__name__, str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


device_commands.register(app, EXIT_CODES)
app.command(epilog=EXIT_CODES)(_reported()(pull))
app.command(epilog=EXIT_CODES)(_reported()(serve))

if __name__ == "__main__":
    app()
