"""`edge-client chat`: a conversation in the terminal, its commands, and the memories of each answer."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.output import Output
from rich.table import Table
from rich.text import Text

from edge_client.cli.options import (
    NOTHING,
    PARTIAL,
    Memory,
    attentive,
    err,
    memories_table,
    nothing_to_read,
    say,
    sources_of,
    statistics_table,
    verdict_of,
)
from edge_client.errors import described
from edge_client.local.folder import DEFAULT_NAME
from edge_client.model import EdgeModel
from edge_client.retrieval import names_of
from edge_client.session import ChatSession
from edge_client.stream import AnswerStream, Remembered, Result, Token
from memory3.errors import InvalidInput, Memory3Error
from memory3.formats import Report, find_sources, read_documents
from memory3.formats.naming import Naming
from memory3.printable import Wrapped, counted, printable, refused_by_system

if TYPE_CHECKING:
    from edge_client.generate.sampling import SamplingOptions

HELP = {
    "/kb [NAME,…]": "list the knowledge bases, or read another one or several (a new conversation)",
    "/memory MODE": "overlap or exact reads memories, off does not, compare answers both ways",
    "/retry": "answer the last question again",
    "/edit TEXT": "replace the last question",
    "/continue": "go on with an answer that was cut or stopped",
    "/system TEXT": "a new conversation with this system message",
    "/add FILE": "remember a file or a folder on this device; nothing of it is sent",
    "/documents": "what this device remembers, by knowledge base and key",
    "/document [NAME]": "ask about a whole document of this device, or about everything again",
    "/correct DOCUMENT NUMBER TEXT": "replace the text of a memory of this device; /memories shows its number",
    "/forget DOCUMENT": "forget a document of mine, by its name or as /documents lists it",
    "/only-documents": "refuse answers that nothing in the documents gave, or no longer",
    "/citations": "show what each part of an answer was read from, or no longer",
    "/memories": "the memories that the last answer read, with their text",
    "/stats": "what the last answer cost",
    "/history [WORDS]": "the conversation, or the messages that hold these words",
    "/save FILE": "write the conversation to a file",
    "/load FILE": "continue a saved conversation",
    "/reset": "a new conversation",
    "/help": "this list",
    "/quit": "leave, as Ctrl-D does",
}
_CORRECTION = re.compile(r"(.+?)\s+(\d+)\s+(\S.*)", re.DOTALL)
COMMANDS = [name.split()[0] for name in HELP]
Typed = Callable[[], str | None]
"""Returns the next input, stripped; None at the end. Raises KeyboardInterrupt on Ctrl-C."""


class TerminalChat:
    """One run of the program. Answers go to standard output, everything else to standard error.

    model: closed by `close`. memory: None for the model's setting. tables: show the memories of
    every answer; otherwise only if something failed.
    """

    def __init__(self, model: EdgeModel, options: SamplingOptions, memory: Memory | None, *, tables: bool) -> None:
        self._model, self._options, self._memory, self._tables = model, options, memory, tables
        self._new(model.session())

    def run(self, typed: Typed) -> None:
        """Run until the input ends or /quit. Ctrl-C ends an answer, or clears the input."""
        while True:
            try:
                text = typed()
            except KeyboardInterrupt:
                say("(Ctrl-D or /quit leaves)")
                continue
            if text is None or text == "/quit":
                return
            name, _, argument = text.partition(" ")
            try:
                if name in COMMANDS:
                    getattr(self, f"_do_{name[1:].replace('-', '_')}")(argument.strip())
                elif name.startswith("/"):
                    raise InvalidInput(f"there is no command {name}; there are: {', '.join(COMMANDS)}")
                elif text:
                    self._answer(text)
            except Memory3Error as error:
                say(described(error), "red")
            except BrokenPipeError:  # who reads the answers has had enough
                raise
            except OSError as error:  # of a file that was named
                say(refused_by_system(error), "red")

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def _new(self, session: ChatSession) -> None:
        self._session = session
        self._last: Result | None = None
        self._about = ""  # a document that questions are about as a whole
        self._unanswered = ""  # a question that was cancelled before its answer began

    @property
    def _mode(self) -> str | None:
        return None if self._memory in (None, Memory.compare) else str(self._memory.value)

    @property
    def _sampling(self) -> SamplingOptions:
        return attentive(self._model, self._options)

    def _answer(self, text: str) -> None:
        mode = self._memory
        if mode is Memory.compare:
            err.rule("without memory", align="left")
            aside = self._model.session(messages=self._session.messages, memory="off")
            options: SamplingOptions = {**self._sampling, "only_documents": False}
            if self._follow(aside, aside.send(text, **options)).reason == "cancelled":
                self._unanswered = text
                return
            err.rule("with memory", align="left")
        before = len(self._session.messages)
        self._last = self._follow(
            self._session, self._session.send(text, memory=self._mode, about=self._about, **self._sampling)
        )
        self._unanswered = text if len(self._session.messages) == before else ""
        refused = any(m.refused for r in self._last.recalls for m in r.recall.read)
        if self._tables or self._last.without_memory or refused:
            err.print(memories_table(self._last.recalls, texts=False))
        if nothing_to_read(self._model, self._last):
            say(NOTHING.format("/add FILE"))

    def _follow(self, session: ChatSession, stream: AnswerStream) -> Result:
        """Print an answer as it is generated."""
        left: list[Remembered] = []
        with on_interrupt(session.cancel), Wrapped(sys.stdout) as shown:
            for event in stream:
                if isinstance(event, Token):
                    shown.write(event.text)
                elif isinstance(event, Remembered):
                    left.append(event)
        for one in left:
            turns = ", ".join(map(str, one.turns))
            outcome = f"could not be remembered: {one.error}" if one.error else "became memories"
            say(f"(turn{'s' if len(one.turns) > 1 else ''} {turns} {outcome})")
        result = stream.result()
        if result.reason == "cancelled":
            say("(stopped)")
        for line in (verdict_of(result), *sources_of(result, citations=self._options.get("citations", False))):
            if line:
                err.print(line)
        return result

    def _do_kb(self, name: str) -> None:
        if (client := self._model.engine.recaller.client) is None:
            raise InvalidInput("the service is not called (--offline): start without it to choose a knowledge base")
        if not name:
            for each in (base.name for base in client.knowledge_bases()):
                say(f"{'*' if each in names_of(client.knowledge_base) else ' '} {each}")
            return
        self._model.require_knowledge_bases(name)
        model = self._model.with_knowledge_base(name)
        self._model.close()
        self._model = model
        self._do_reset("")
        say(f"reading {name}")

    def _do_memory(self, mode: str) -> None:
        try:
            self._memory = Memory(mode)
        except ValueError:
            raise InvalidInput(f"/memory takes overlap, exact, off or compare, not {mode!r}") from None
        say(f"memory {mode}")

    def _do_retry(self, _: str) -> None:
        # Kept until there is an answer, so that a retry that fails can be retried.
        self._unanswered = self._unanswered or self._session.take_back()
        self._answer(self._unanswered)

    def _do_edit(self, text: str) -> None:
        question = _given("/edit TEXT", text)
        if not self._unanswered:
            self._session.take_back()
        self._answer(question)

    def _do_continue(self, _: str) -> None:
        self._last = self._follow(self._session, self._session.go_on(memory=self._mode, **self._sampling))

    def _do_system(self, text: str) -> None:
        self._new(self._model.session(_given("/system TEXT", text)))
        say("a new conversation")

    def _do_documents(self, _: str) -> None:
        bases = self._model.local.documents()
        for name, documents in bases.items():
            for one in documents:
                say(f"{name}: {one.key}, {counted(one.references, 'memory')}{PARTIAL if one.partial else ''}")
        if not any(bases.values()):
            say(NOTHING.format("/add FILE"))

    def _do_document(self, name: str) -> None:
        if name:
            self._model.local.document(name)  # refuses what is none
        self._about = name
        say(f"about {name} as a whole: /document alone ends this" if name else "about everything")

    def _do_correct(self, argument: str) -> None:
        if (given := _CORRECTION.fullmatch(argument)) is None:
            raise InvalidInput("/correct needs a document, the number of its memory and the new text")
        base, keys = self._model.local.document(given[1])
        if not self._model.correct(given[1], int(given[2]), given[3], knowledge_base=base.name):
            raise InvalidInput(f"{keys[0]} has no memory {given[2]}")
        say(f"corrected: {keys[0]} {given[2]}")

    def _do_forget(self, key: str) -> None:
        chosen = self._model.local.forget(DEFAULT_NAME, str(_typed_path("/forget DOCUMENT", key)), folders=True)
        for one in chosen:
            say(f"forgotten: {one}")
        if not chosen:
            say(f"there is no {key}; /documents lists what there is")

    def _do_add(self, path: str) -> None:
        naming = Naming((_typed_path("/add FILE", path),))
        report = Report()
        sources = find_sources(naming.paths, report)
        documents = (one for source in sources for one in read_documents(source, Path(naming.key(source)), report))
        try:
            with err.status(f"remembering {path}"):
                for one in self._model.remember_documents(documents):
                    if one.outcome == "failed":
                        say(f"{one.where}: {one.message}")
                    elif one.outcome != "writing":
                        say(f"{one.outcome}: {one.key}, {counted(one.references, 'memory')}")
        except KeyboardInterrupt:
            say("(stopped)")
        for line in report.lines(unreadable=False):
            say(line)

    def _do_only_documents(self, _: str) -> None:
        only = not self._options.get("only_documents", False)
        self._options = {**self._options, "only_documents": only}
        say(f"only from documents: {'on' if only else 'off'}")

    def _do_citations(self, _: str) -> None:
        shown = not self._options.get("citations", False)
        self._options = {**self._options, "citations": shown}
        say(f"citations {'on' if shown else 'off'}")

    def _do_memories(self, _: str) -> None:
        if self._last is not None:
            err.print(memories_table(self._last.recalls))

    def _do_stats(self, _: str) -> None:
        if self._last is not None:
            err.print(statistics_table(self._last))

    def _do_history(self, words: str) -> None:
        for message in self._session.messages:
            if words.lower() in message["content"].lower():
                content = printable(message["content"])
                err.print(Text.assemble((f"{message['role']}> ", "bold"), content))

    def _do_save(self, path: str) -> None:
        self._session.save(_typed_path("/save FILE", path))
        say(f"saved to {path}")

    def _do_load(self, path: str) -> None:
        self._new(self._model.load_session(_typed_path("/load FILE", path)))
        say(f"{counted(len(self._session.messages), 'message')} from {path}")

    def _do_reset(self, _: str) -> None:
        self._new(self._model.session())
        say("a new conversation")

    def _do_help(self, _: str) -> None:
        listed = Table.grid(padding=(0, 2, 0, 0))
        for name, what in HELP.items():
            listed.add_row(Text(f"  {name}", style="dim"), Text(what, style="dim"))
        err.print(listed)


def _given(command: str, argument: str) -> str:
    """The argument of a command; raises InvalidInput if it is empty."""
    if not argument:
        name, what = command.split()
        raise InvalidInput(f"{name} needs a {what.lower()}: {command}")
    return argument


def _typed_path(command: str, argument: str) -> Path:
    """A path typed behind a command, as a shell would read it: quotes, backslashes before spaces, ~."""
    typed = _given(command, argument)
    if not Path(typed).exists():  # one that is a file's name as it is needs no reading
        with suppress(ValueError):  # a quote alone
            words = shlex.split(typed)
            typed = words[0] if len(words) == 1 else typed
    return Path(typed).expanduser()


def typed_lines() -> str | None:
    """Read a message per line from a pipe or file; a trailing backslash continues the line."""
    lines: list[str] = []
    for line in iter(sys.stdin.readline, ""):
        lines.append(line.rstrip("\n"))
        if not lines[-1].endswith("\\"):
            break
        lines[-1] = lines[-1][:-1]
    return "\n".join(lines).strip() if lines else None


def typed_at_terminal(
    history: Path | None = None, *, source: Input | None = None, target: Output | None = None
) -> Typed:
    """Read messages from the keyboard: Enter sends, Alt-Enter (Esc, Enter) inserts a line break.

    Arrow keys and Ctrl-R search the history.

    history: file of the history, readable only by its owner. source, target: of prompt_toolkit; the
    terminal unless a test names others.
    """
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    try:
        if history is not None:
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
    except OSError:  # a home that cannot be written
        history = None
    session: PromptSession[str] = PromptSession(
        history=None if history is None else FileHistory(str(history)),
        multiline=True,
        completer=WordCompleter(COMMANDS, sentence=True),
        complete_while_typing=False,
        key_bindings=keys,
        prompt_continuation=lambda *_: "...> ",
        input=source,
        output=target,
    )

    def typed() -> str | None:
        try:
            return session.prompt("you> ").strip()
        except EOFError:
            return None

    return typed


@contextmanager
def on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, Ctrl-C runs `call` in a thread, which may take locks, and does not raise.

    Outside the main thread, where Python handles no signals, the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_: int, __: FrameType | None) -> None:
        threading.Thread(target=call, name="memory3-interrupt", daemon=True).start()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
