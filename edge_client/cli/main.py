"""`edge-client`: answer a question, chat, serve, or check this device. Only answers go to standard output."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.cli.build import build
from edge_client.cli.chat import TerminalChat, typed_at_terminal, typed_lines
from edge_client.cli.doctor import doctor, pull
from edge_client.cli.options import (
    NOTHING,
    Memory,
    as_json,
    attentive,
    err,
    loaded,
    memories_table,
    notes_of,
    nothing_to_read,
    opened,
    out,
    say,
    sources_of,
    statistics_table,
    verdict_of,
    warn_of_names,
    with_options,
)
from edge_client.cli.remember import correct, forget, remember, remembered
from edge_client.cli.verify import verify
from edge_client.errors import MENDABLE, described
from edge_client.generate.sampling import SamplingOptions
from edge_client.recall.policy import RecallMode
from edge_client.serve.access import (
    ServeSettings,
    access_key,
    fingerprint,
    network_address,
    own_certificate,
    qr_code,
    state_folder,
)
from edge_client.settings import EdgeSettings
from edge_client.stream import Result
from memory3.errors import InvalidInput, Memory3Error
from memory3.formats import FileDocument, Report, find_sources, read_documents
from memory3.printable import Program, Wrapped, refused_by_system, version_option

EXIT_CODES = (
    "Exit codes: 0 success, also if the service is down and the answer has no memories (with a warning); "
    "1 wrong bundle, question, setting or --kb; 2 wrong usage; 3 no memories, and either --require-memory was given or "
    "the cause needs fixing, such as a service with another model or a missing API key; 130 interrupted."
)

app = typer.Typer(cls=Program, no_args_is_help=True, epilog=EXIT_CODES)

PATIENCE_S = 10.0
"""How long `ask` waits for memories: nobody watches its words come, and it has no later chunk to make up for them."""

MODEL = ("bundle", "local", "service", "knowledge_base", "memory", "offline")


@app.callback()
def main(version: Annotated[bool, version_option("edge-client")] = False) -> None:
    """A language model on this device that reads explicit memories from a service.

    First steps:

    \b
    edge-client pull --service HOST:PORT   download the model
    edge-client doctor                     check what works on this device
    edge-client ask "…"                    answer a question
    edge-client chat                       hold a conversation
    edge-client remember FILES             turn this device's own files into memories

    Every setting also has an environment variable EDGE_CLIENT_*, such as EDGE_CLIENT_SERVICE.
    """  # noqa: D301  # the mark says that these lines are not wrapped


@contextmanager
def _reported() -> Iterator[None]:
    """Print a Memory3Error, or what the system refuses, as one line and exit with 1, with 130 on Ctrl-C.

    A traceback is only for bugs.
    """
    try:
        yield
    except BrokenPipeError:  # who reads the output has had enough
        raise
    except (Memory3Error, OSError) as error:
        say(described(error) if isinstance(error, Memory3Error) else refused_by_system(error), "red")
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


@app.command(epilog=EXIT_CODES)
@with_options(*MODEL, answer=True)
@_reported()
def ask(
    question: Annotated[str, typer.Argument(help="The question; - reads it from standard input.")],
    given: dict[str, Any],
    drawn: SamplingOptions,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="File to ask about (text, PDF, Office, mail, tables, code and more); a long one becomes memories.",
        ),
    ] = None,
    about: Annotated[
        str, typer.Option("--document", help="Document of this device that the question is about as a whole.")
    ] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also show the memories read, and what the answer cost.")
    ] = False,
    require_memory: Annotated[
        bool, typer.Option("--require-memory", help="Exit with 3 if memories are unavailable.")
    ] = False,
) -> None:
    """Answer one question.

    The answer alone goes to standard output. A line on standard error says what it rests on.
    """
    if question == "-":
        question = sys.stdin.read()
    if not question.strip():
        raise InvalidInput("the question is empty: give it as an argument, or - to read standard input")
    documents = [] if file is None else _documents(file)
    compared, results = _memory(given) is Memory.compare, list[Result]()
    with opened(given, drawn, document=about, deadline_s=PATIENCE_S) as model:
        for mode in ["off", None] if compared else [None]:
            options: SamplingOptions = {**drawn, "only_documents": False} if compared and mode == "off" else drawn
            if compared and not json_output:
                out.rule("without memory" if mode == "off" else "with memory", align="left")
            with err.status("") as status:
                stream = model.generate(
                    question,
                    memory=mode,
                    document=documents,
                    about="" if mode == "off" else about,
                    **(options if json_output else attentive(model, options)),
                    progress=lambda done, of: status.update(f"remembering {file}: {done} of {of} references"),
                )
            if not json_output:
                with Wrapped(sys.stdout) as shown_text:
                    for delta in stream.deltas:
                        shown_text.write(delta)
                _around(stream.result(), citations=drawn.get("citations", False), details=details)
                if nothing_to_read(model, stream.result()):
                    say(NOTHING.format("`edge-client remember FILE`"))
            results.append(stream.result())
    if json_output:
        shown = [as_json(result) for result in results]
        names = ("without_memory", "with_memory")
        data = dict(zip(names, shown, strict=True)) if compared else shown[0]
        print(json.dumps(data, ensure_ascii=False, indent=2))
    for result in results:
        lasting = [] if result.memories else [e for e in result.errors if e.partition(":")[0] in MENDABLE]
        if lasting:
            why = f": {lasting[0]}" if json_output else ""  # else it is shown already
            say(f"no memory could be read, and none will be until this is mended{why}", "red")
        elif result.without_memory and require_memory:
            say("--require-memory: memories could not be had", "red")
        else:
            continue
        raise typer.Exit(3)


@app.command(epilog=EXIT_CODES)
@with_options(*MODEL, answer=True)
@_reported()
def chat(given: dict[str, Any], drawn: SamplingOptions) -> None:
    """Hold a conversation with memories. Ctrl-C stops an answer, not the program.

    In a terminal, Enter sends, Alt-Enter begins a new line, and arrow keys and Ctrl-R search earlier input. Each answer
    is followed by the memories that it read. /help lists the commands, such as /retry, /edit, /add, /save, /kb.
    """
    memory, at_terminal = _memory(given), sys.stdin.isatty() and sys.stdout.isatty()
    typed = typed_at_terminal(state_folder() / "chat-history") if at_terminal else typed_lines
    conversation = TerminalChat(opened(given, drawn), drawn, memory, tables=at_terminal)
    try:
        conversation.run(typed)
    finally:
        conversation.close()


@app.command(epilog=EXIT_CODES)
@with_options("bundle", "service", "knowledge_base", "local", "offline", "provider", "model")
@_reported()
def serve(
    given: dict[str, Any],
    memory: Annotated[RecallMode | None, typer.Option("--memory", help="Default memory mode of requests.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; default: 127.0.0.1.")] = None,
    lan: Annotated[bool, typer.Option("--lan", help="Listen on the network, with a key; prints a QR code.")] = False,
    tls: Annotated[bool | None, typer.Option("--tls", help="Serve HTTPS with a self-signed certificate.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, help="Port; 0 takes a free one; default: 8080.")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Concurrent answers; default: 4.")] = None,
    port_file: Annotated[Path | None, typer.Option(help="File to write the port to, once ready.")] = None,
) -> None:
    """Serve OpenAI's API under /v1 and a chat page at /.

    Further settings are environment variables EDGE_CLIENT_SERVE_*, such as EDGE_CLIENT_SERVE_API_KEY.
    """
    try:
        import uvicorn

        from edge_client.serve.app import make_app
    except ImportError as error:
        raise InvalidInput(
            f"the server needs packages that are not installed ({error.name}): pip install 'memory3-edge[serve]'"
        ) from error

    settings = ServeSettings(**_given(host="0.0.0.0" if lan else host, port=port, tls=tls))
    key, made = access_key(settings)
    edge = EdgeSettings(**given, **_given(memory=memory, parallel=parallel))
    certificate, private = own_certificate() if settings.tls else (None, None)
    listening = _listen(settings.host, settings.port)
    warn_of_names(edge)
    with loaded(edge) as model:
        config = uvicorn.Config(
            make_app(model, edge, settings, key),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
            ssl_certfile=certificate,
            ssl_keyfile=private,
        )
        number = listening.getsockname()[1]
        url = f"{'https' if settings.tls else 'http'}://{_reachable(settings.host)}:{number}"
        page = f"{url}/#key={key}" if made else f"{url}/"
        typer.echo(f"chat at {page}, OpenAI's API at {url}/v1", err=True)
        if certificate is not None:
            typer.echo(f"SHA-256 of its certificate: {fingerprint(certificate)}", err=True)
        if lan:
            typer.echo(qr_code(page), err=True)
        if port_file is not None:  # others wait for it: it is there whole or not at all
            partial = port_file.with_name(f"{port_file.name}.partial")
            partial.write_text(str(number))
            partial.replace(port_file)
        uvicorn.Server(config).run(sockets=[listening])


@app.command(epilog=EXIT_CODES)
@with_options("bundle", "service", "knowledge_base", "local", "offline")
@_reported()
def mcp(given: dict[str, Any]) -> None:
    """Serve memories and answers as tools of the Model Context Protocol, over standard input and output.

    A program such as an editor starts this command; its tools are search, ask, remember, list and forget.
    """
    try:
        from edge_client.serve.mcp import make_server
    except ImportError as error:
        raise InvalidInput(
            f"the server needs packages that are not installed ({error.name}): pip install 'memory3-edge[mcp]'"
        ) from error

    settings = EdgeSettings(**given)
    warn_of_names(settings)
    with loaded(settings) as model:
        make_server(model).run("stdio")


def _documents(file: Path) -> list[FileDocument]:
    """The documents of a file, such as its pages; raises InvalidInput for one that cannot be read."""
    report = Report()
    each = (read_documents(source, report=report) for source in find_sources([file], report))
    documents = [document for found in each for document in found]
    if unreadable := [d for d in documents if d.unreadable]:
        raise InvalidInput(f"{unreadable[0].where}: {unreadable[0].unreadable}")
    if not documents:
        raise InvalidInput(f"{file} has no text")
    for line in report.lines()[1:]:  # without what was read
        say(line)
    return documents


def _memory(given: dict[str, Any]) -> Memory | None:
    """The memory mode; one that is not a RecallMode is removed from the settings."""
    memory: Memory | None = given.pop("memory", None)
    if memory not in (None, Memory.compare):
        given["memory"] = memory.value
    return memory


def _around(result: Result, *, citations: bool, details: bool) -> None:
    """Print what an answer rests on, and warnings, to standard error.

    citations: each part of the answer with its source. details: the memories read, and statistics.
    """
    if line := verdict_of(result):
        err.print(line)
    if result.without_memory and notes_of(result.recalls).renderables:  # the reasons are the lines that follow
        which = "without the memories of some chunks" if result.memories else "without memory"
        say(f"answered {which}; why:", "yellow")
    for line in sources_of(result, citations=citations):
        err.print(line)
    refused = any(memory.refused for recalled in result.recalls for memory in recalled.recall.read)
    err.print(memories_table(result.recalls) if details or refused else notes_of(result.recalls), end="")
    if details:
        err.print(statistics_table(result))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _reachable(host: str) -> str:
    """The host part of a URL for a listening address; an IPv6 address gets brackets."""
    plain = host.strip("[]")
    shown = network_address() if plain in ("0.0.0.0", "::") else plain
    return f"[{shown}]" if ":" in shown else shown


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that readers of the port file can connect at once; raises InvalidInput.

    All addresses (`::`) are those of IPv4 as well, where the system can.
    """
    try:
        plain = host.strip("[]")
        family = socket.AF_INET6 if ":" in plain else socket.AF_INET
        both = plain == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((plain, port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port"
        ) from error


for command in (doctor, build, verify, pull, remember, remembered, correct, forget):
    app.command(epilog=EXIT_CODES)(_reported()(command))

if __name__ == "__main__":
    app()
