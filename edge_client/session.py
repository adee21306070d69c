"""`ChatSession`: one conversation with caches of its own, so that only what is new is read at every turn."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_client.engine import Engine
from edge_client.errors import Cancellation, SessionBusy
from edge_client.generate.conversation import Conversation
from edge_client.generate.loop import Answer, answer_stream, checked
from edge_client.generate.past import Progress
from edge_client.generate.whole import DocumentAnswer, document_stream
from edge_client.local.database import connected, disk_errors
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.stream import AnswerStream
from memory3.errors import CorruptFile, InvalidInput, MissingFile, ModelMismatch
from memory3.formats import FileDocument
from memory3.text.chat import Message

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_client.generate.sampling import SamplingOptions


FILE_VERSION = 3
"""Of a saved session: the SQLite file of the conversation's own memories with one more table, or that table alone."""


class ChatSession:
    """A conversation. Made by `EdgeModel.session` and `EdgeModel.load_session`.

        session = model.session(system="Answer briefly.")
        print(session.send("What is the highest point of Benin?").text())
        for delta in session.send("And of Togo?").deltas:
            print(delta, end="", flush=True)

    Threads: any number of sessions may be used at the same time, each by one thread at a time; a second `send`
    while an answer is being read, or a second thread that reads its events, gets SessionBusy. An answer that was
    never read, or was cancelled, is ended by the next `send`. `cancel` may be called from any thread. Cost: the
    key-values of the text and of the memories being read.

    The turns of the model are kept as the tokens that it generated, so their key-values are used again at the
    next turn even where their text would be tokenized otherwise. A conversation may be of any length: when the cache
    is filled to three quarters, the oldest turns become memories of this conversation alone, which every
    chunk retrieves next to those of the knowledge bases; the system message and the last turns stay. Needs a bundle
    with writer.onnx and a memory mode other than "off"; without them a conversation ends with ContextFull.
    """

    def __init__(
        self,
        engine: Engine,
        messages: Sequence[Message],
        policy: RecallPolicy,
        generated: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        if messages:
            engine.bundle.chat.prompt(messages)  # refuses what is no conversation
        self._engine, self._policy = engine, policy
        self.conversation = Conversation(engine, messages, generated or {})
        self._answer: weakref.ref[AnswerStream] | None = None
        self._lock = threading.RLock()  # a dropped answer may be recorded in the midst of anything

    @property
    def messages(self) -> list[Message]:
        """A copy of the conversation: {"role": …, "content": …}, finished turns and the one under way."""
        with self._lock:
            return [dict(m) for m in self.conversation.messages]

    @property
    def tokens(self) -> int:
        """Tokens of the conversation that are in the cache."""
        return len(self.conversation.sequence.tokens)

    def send(
        self, text: str, *, memory: RecallMode | str | None = None, about: str = "", **options: Unpack[SamplingOptions]
    ) -> AnswerStream:
        """Send a message and iterate over the answer's events: Recalled, Remembered, Token, and Finished at the end.

        memory: overlap, exact or off for this turn; where it is switched on or off the conversation is read anew.
        about: a document of this device that this message is about as a whole, as in `EdgeModel.generate`.
        options: see `Sampling`. Both turns are part of the conversation when the answer is over, a cancelled one
        with the text that was shown; one that ended before its first token, for whatever reason, takes its question
        back. Arguments are checked at once. Raises InvalidInput, ContextFull, SessionBusy, ModelClosed.
        """
        policy = self._engine.policy_with(memory, self._policy)
        return self.reply({"role": "user", "content": text}, policy, options, about)

    def go_on(self, *, memory: RecallMode | str | None = None, **options: Unpack[SamplingOptions]) -> AnswerStream:
        """Continue the last answer, such as one that was cut. As `send`; raises InvalidInput where there is none."""
        return self.reply(None, self._engine.policy_with(memory, self._policy), options)

    def reply(
        self, message: Message | None, policy: RecallPolicy, options: Mapping[str, Any], about: str = ""
    ) -> AnswerStream:
        """Answer a further message, or continue it where it is the assistant's, None for the last; else as `send`."""
        self._end_abandoned()
        with self._lock:
            self._check_free()
            talk, before = self.conversation, self.conversation.messages
            if message is None and [m["role"] for m in before[-1:]] != ["assistant"]:
                raise InvalidInput("there is no answer to continue: ask a question first")
            talk.messages = [*before, message] if message else before
            try:
                if about:
                    stream = document_stream(self._engine, about, talk.messages, policy, options, self._record)
                else:
                    prompt = talk.prompt(policy)
                    sampling = checked(self._engine, prompt, options)
                    stream = answer_stream(self._engine, talk.sequence, prompt, sampling, policy, self._record, talk)
            except BaseException:
                talk.messages = before
                raise
            self._answer = weakref.ref(stream)
        return stream

    def remember(self, text: str | Sequence[FileDocument], title: str = "", *, progress: Progress | None = None) -> int:
        """Write a text of any length as memories that this conversation alone reads; returns how many they are.

        text: or the documents of a file (`memory3.formats`), such as its pages, which have titles of their own. title:
        stands in front of every reference, and names the text where it is read. progress: called after every
        few references. What is written stays when this is interrupted, and is not written again. Raises InvalidInput,
        SessionBusy, StorageError (NO_WRITER, DISK_FULL), ModelClosed.
        """
        self._end_abandoned()
        with self._lock:
            self._check_free()
            return self.conversation.remembers().remember(text, title, progress)

    def take_back(self) -> str:
        """Forget the last question and its answer, and return the question; what was read before stays in the cache.

        Raises InvalidInput where there is no question yet, SessionBusy, ModelClosed.
        """
        self._end_abandoned()
        with self._lock:
            self._check_free()
            talk = self.conversation
            if [m["role"] for m in talk.messages[-2:]] != ["user", "assistant"]:
                raise InvalidInput("this conversation has no question yet")
            return talk.take_back()

    def cancel(self) -> None:
        """End the answer that is under way within one step of the decoder; nothing if there is none. Any thread."""
        if (answer := self._under_way()) is not None:
            answer.cancel()

    def save(self, path: str | Path) -> None:
        """Write the conversation to one file, atomically: messages, tokens of the answers, and its memories.

        Raises SessionBusy while an answer is being read, StorageError, and InvalidInput for a folder.
        """
        self._end_abandoned()
        with self._lock:
            self._check_free()
            talk = self.conversation
            talk.settle(Cancellation())
            header = {
                "identity": asdict(self._engine.bundle.identity),
                "messages": talk.messages,
                "spelled": talk.generated,
                "left": talk.left,
            }
            _write(Path(path), header, talk.past.base.content() if talk.past else b"")

    @classmethod
    def load(cls, engine: Engine, path: str | Path, policy: RecallPolicy) -> ChatSession:
        """A saved conversation. What of it is text is read anew at the next turn.

        Raises MissingFile, CorruptFile, IdentityMismatch.
        """
        header, past = _read(Path(path))
        saved_with, ours = header["identity"]["model_id"], engine.bundle.identity.model_id
        if saved_with != ours:
            remedy = "open the bundle that it was saved with, or begin a new session"
            raise ModelMismatch(saved_with, ours, remedy, subject="the session was saved with")
        generated = {int(number): tokens for number, tokens in header["spelled"].items()}
        session = cls(engine, header["messages"], policy, generated)
        session.conversation.left = header["left"]
        if past:
            session.conversation.remembers(past)
        return session

    @property
    def busy(self) -> bool:
        """Whether an answer of this session is not over."""
        return self._under_way() is not None

    def _under_way(self) -> AnswerStream | None:
        answer = self._answer() if self._answer else None
        return None if answer is None or answer.over else answer

    def _end_abandoned(self) -> None:
        """End an answer that nobody reads; not under the session's lock, which its end takes."""
        answer = self._under_way()
        if answer is not None and answer.abandoned:
            answer.close()

    def _check_free(self) -> None:
        self._engine.check_open()
        if self.busy:
            raise SessionBusy(
                "an answer of this session is being read: read it to its end, or end it with its close() or with "
                "ChatSession.cancel"
            )

    def _record(self, answer: Answer | DocumentAnswer) -> None:
        """The answer is over: keep its turn, or take the question back if nothing was generated."""
        with self._lock:
            talk = self.conversation
            *before, last = talk.messages
            if last["role"] == "assistant":  # it was continued
                generated = talk.generated.pop(len(before), None)
                if (own := answer.token_ids) is not None and generated is not None:
                    talk.generated[len(before)] = [*generated, *own]
                talk.messages = [*before, {**last, "content": last["content"] + answer.shown}]
            elif answer.began:
                if (own := answer.token_ids) is not None:
                    talk.generated[len(talk.messages)] = own
                talk.messages = [*talk.messages, {"role": "assistant", "content": answer.shown}]
            else:
                talk.messages = before


def _write(path: Path, header: dict[str, Any], past: bytes) -> None:
    """Write a temporary file next to `path`, with the bytes of its memories, and move it there.

    Raises StorageError, and InvalidInput for a folder.
    """
    if not path.name or path.is_dir():
        raise InvalidInput(f"{path} is a folder: name a file for the session")
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    text = json.dumps({**header, "past": bool(past)})
    try:
        with disk_errors(path):
            partial.touch(mode=0o600)  # for its owner alone, as what it was read from
            partial.write_bytes(past)
            with closing(connected(partial, "DELETE")) as file:  # one file alone
                file.execute("DROP TABLE IF EXISTS session")  # of the file that it was loaded from
                file.execute("CREATE TABLE session (version INTEGER, header TEXT, sha256 TEXT)")
                file.execute("INSERT INTO session VALUES (?, ?, ?)", (FILE_VERSION, text, _digest(text)))
            partial.replace(path)
    finally:
        with suppress(OSError):  # where nothing can be written there is nothing to remove
            partial.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and memories of a file, checked; raises MissingFile, CorruptFile, StorageError."""
    if not path.is_file():
        raise MissingFile(f"no session at {path}: save one with ChatSession.save or /save")
    with disk_errors(path):
        with closing(connected(path, "DELETE")) as file:
            version, text, digest = file.execute("SELECT version, header, sha256 FROM session").fetchone()
        if version != FILE_VERSION:
            raise CorruptFile(f"{path} has session format {version}, this program reads {FILE_VERSION}")
        if _digest(text) != digest:
            raise CorruptFile(f"{path} was changed since it was saved (SHA-256 differs)")
        header = json.loads(text)
        return header, path.read_bytes() if header["past"] else b""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
