"""`edge-client chat`: a conversation in the terminal, its commands, and what each answer read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from edge_client.cli import show
from edge_client.cli.options import Memory
from edge_client.cli.terminal import AnswerView, on_interrupt, show_live, show_plain
from edge_client.errors import described
from edge_client.model import EdgeModel
from edge_client.recall.recaller import Recaller
from edge_client.session import ChatSession
from edge_client.stream import AnswerStream
from edge_client.wire.client import MemoryClient
from edge_client.wire.retrieval import names_of
from memory_model.errors import InvalidInput, Memory3Error
from memory_model.formats import find_sources, read_documents
from memory_model.printable import printable

if TYPE_CHECKING:
    from edge_client.cli.terminal import TypedText
    from edge_client.generate.sampling import SamplingOptions

HELP = {
    "/kb [NAME,…]": "list the knowledge bases, or read another one or several (a new conversation)",
    "/memory MODE": "overlap or exact reads memories, off does not, compare answers both ways",
    "/retry": "answer the last question again",
    "/add FILE": "remember a file or a folder on this device; nothing of it is sent",
    "/memories": "the memories that the last answer read, with their text",
    "/stats": "what the last answer cost",
    "/history": "the conversation",
    "/save FILE": "write the conversation to a file",
    "/load FILE": "continue a saved conversation",
    "/reset": "a new conversation",
    "/help": "this list",
    "/quit": "leave, as Ctrl-D does",
}
COMMANDS = [name.split()[0] for name in HELP]


class TerminalChat:
    """One run of the program. Answers go to `out`; all that is around them to `err`.

    model: closed by `close`. memory: None for the model's setting. live: show the pane while an answer comes;
    otherwise its tokens are written as they are.
    """

    def __init__(
        self, model: EdgeModel, options: SamplingOptions, memory: Memory | None, *, live: bool, out: Console,
        err: Console,
    ) -> None:  # fmt: skip
        self._model, self._options, self._memory, self._live = model, options, memory, live
        self._out, self._err = out, err
        self._session = self._model.session()
        self._last = AnswerView()
        self._unanswered = ""  # a question that was stopped before the first word of its answer
        self._commands: dict[str, Callable[[str], None]] = {
            "/kb": self._knowledge_base, "/memory": self._set_memory, "/retry": self._retry, "/add": self._add,
            "/memories": self._memories, "/stats": self._statistics, "/history": self._history,
            "/save": self._save, "/load": self._load, "/reset": self._reset, "/help": self._help,
        }  # fmt: skip

    def run(self, typed: TypedText) -> None:
        """Until the end of what is typed, or /quit. Ctrl-C ends an answer, or what is being typed, and no more."""
        while True:
            try:
                text = typed.read()
            except KeyboardInterrupt:
                self._say("(Ctrl-D or /quit leaves)")
                continue
            if text is None or text in ("/quit", "/exit"):
                return
            try:
                if text.startswith("/"):
                    name, _, argument = text.partition(" ")
                    if name not in self._commands:
                        raise InvalidInput(f"there is no command {name}; there are: {', '.join(COMMANDS)}")
                    self._commands[name](argument.strip())
                elif text:
                    self._answer(text)
            except Memory3Error as error:
                self._err.print(Text(printable(described(error)), style="red"), soft_wrap=True)

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def _answer(self, text: str) -> None:
        mode = self._memory
        memory = None if mode is None or mode is Memory.compare else mode.value
        if mode is Memory.compare:
            self._err.rule("without memory", align="left")
            aside = self._model.session(messages=self._session.messages, memory="off")
            without = self._follow(aside, aside.send(text, **self._options))
            if _stopped(without):
                self._unanswered = text
                self._say("(stopped)")
                return
            self._err.rule("with memory", align="left")
        before = len(self._session.messages)
        self._last = self._follow(self._session, self._session.send(text, memory=memory, **self._options))
        self._unanswered = text if len(self._session.messages) == before else ""
        finished = self._last.finished
        for left in self._last.remembered:
            turns = (
                f"turns {left.turns[0]} to {left.turns[-1]}" if left.turns[1:] else f"turn {left.turns[0]}"
            )
            self._say(
                f"({turns} could not be remembered: {left.error})"
                if left.error
                else f"({turns} became memories)"
            )
        if _stopped(self._last):
            self._say("(stopped)")
        refused = any(m.refused for r in self._last.recalls for m in r.recall.read)
        if finished is not None and (self._live or finished.without_memory or refused):
            self._err.print(show.memories_table(self._last.recalls, texts=False))

    def _follow(self, session: ChatSession, stream: AnswerStream) -> AnswerView:
        with on_interrupt(session.cancel):
            return show_live(stream, self._out) if self._live else show_plain(stream)

    def _knowledge_base(self, name: str) -> None:
        client = self._client()
        known = client.knowledge_bases()
        if not name:
            for each in known:
                self._say(f"{'*' if each in names_of(client.knowledge_base) else ' '} {each}")
            return
        if unknown := [each for each in names_of(name) if each not in known]:
            raise InvalidInput(
                f"there is no knowledge base {unknown[0]!r}; there are: {', '.join(known) or 'none'}"
            )
        model = self._model.with_knowledge_base(name)
        self._model.close()
        self._model = model
        self._reset("")
        self._say(f"reading {name}")

    def _client(self) -> MemoryClient:
        recaller = self._model.recaller
        if not isinstance(recaller, Recaller) or not isinstance(recaller.client, MemoryClient):
            raise InvalidInput(
                "the service is not called (--offline): start without it to choose a knowledge base"
            )
        return recaller.client

    def _set_memory(self, mode: str) -> None:
        try:
            self._memory = Memory(mode)
        except ValueError:
            raise InvalidInput(f"/memory takes overlap, exact, off or compare, not {mode!r}") from None
        self._say(f"memory {mode}")

    def _retry(self, _: str) -> None:
        # Kept until there is an answer: what refuses to be asked again can be asked once more.
        self._unanswered = self._unanswered or self._session.take_back()
        self._answer(self._unanswered)

    def _add(self, path: str) -> None:
        sources = find_sources([Path(_named("/add", path)).expanduser()])
        documents = (document for source in sources for document in read_documents(source))
        try:
            with self._err.status(f"remembering {path}"):
                for one in self._model.remember_documents(documents):
                    if one.outcome == "failed":
                        self._say(f"{one.where}: {one.message}")
                    elif one.outcome != "writing":
                        self._say(f"{one.outcome}: {one.key}, memories: {one.references}")
        except KeyboardInterrupt:
            self._say("(stopped)")

    def _memories(self, _: str) -> None:
        self._err.print(show.memories_table(self._last.recalls))

    def _statistics(self, _: str) -> None:
        if self._last.finished is not None:
            self._err.print(show.statistics_table(self._last.finished, self._last.recalls))

    def _history(self, _: str) -> None:
        for message in self._session.messages:
            self._err.print(Text.assemble((f"{message['role']}> ", "bold"), printable(message["content"])))

    def _save(self, path: str) -> None:
        self._session.save(_named("/save", path))
        self._say(f"saved to {path}")

    def _load(self, path: str) -> None:
        self._session = self._model.load_session(_named("/load", path))
        self._unanswered = ""
        self._say(f"{len(self._session.messages)} messages from {path}")

    def _reset(self, _: str) -> None:
        self._session = self._model.session()
        self._last = AnswerView()
        self._unanswered = ""
        self._say("a new conversation")

    def _help(self, _: str) -> None:
        for name, what in HELP.items():
            self._say(f"  {name:16}{what}")

    def _say(self, text: str) -> None:
        self._err.print(Text(printable(text), style="dim"), soft_wrap=True)


def _named(command: str, argument: str) -> str:
    """The file that a command is about; raises InvalidInput where none was typed."""
    if not argument:
        raise InvalidInput(f"{command} needs the name of a file: {command} FILE")
    return argument


def _stopped(view: AnswerView) -> bool:
    return view.finished is not None and view.finished.reason == "cancelled"
