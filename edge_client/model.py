"""`EdgeModel`: the SDK. A bundle is opened once; conversations and questions share its weights and its recalling."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_client.decoder.sequence import common_length
from edge_client.engine import Engine
from edge_client.generate.loop import answer_stream, checked
from edge_client.generate.past import Progress
from edge_client.generate.whole import document_stream
from edge_client.local.folder import DEFAULT_NAME, DocumentOutcome, LocalKnowledgeBases
from edge_client.local.folder import correct as correct_memory
from edge_client.local.folder import remember as remember_documents
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.session import ChatSession
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerStream, Result
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.formats import FileDocument
from memory3.formats.document import joined
from memory3.text.chat import Message, Prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_client.generate.sampling import SamplingOptions
    from edge_client.settings import EdgeOptions

KEPT = 4
"""Conversations of `generate` that keep their key-values, or as many as the decoder holds at a time."""


class EdgeModel:
    """Answers with memories from a service, or without.

        with EdgeModel.open("build/bundle", service="127.0.0.1:7430") as model:
            print(model.ask("What is the capital of Norway?").text)
            for delta in model.generate("And of Sweden?").deltas:
                print(delta, end="", flush=True)

    memory, an argument of all that answers: overlap, exact or off (see RecallMode); None for the model's setting.

    Threads: everything here may be called from any thread. Answers run at the same time: every one and every session
    has key-values of its own, and their steps are computed together. Background threads recall for all of them. Do
    not fork a process with an open model: open it in the child.

    Closing cancels the answers that are under way: their iterations end with Finished, reason "cancelled",
    after the step that they are in; then the connection is closed. After that everything raises ModelClosed. A program
    that ends closes what is open.
    """

    def __init__(self, engine: Engine) -> None:
        """See `open`."""
        self.engine = engine
        self._choosing = threading.Lock()  # a session's lock may be taken within, and this one within none
        self._sessions: list[ChatSession] = []  # of `generate`, the last one first
        _OPEN.add(self)

    @classmethod
    def open(
        cls,
        bundle: str | Path | None = None,
        service: str | None = None,
        *,
        settings: EdgeSettings | None = None,
        **options: Unpack[EdgeOptions],
    ) -> EdgeModel:
        """Open a bundle and name a service (neither is needed if the environment names them).

        settings: instead of all other arguments. options: fields of EdgeSettings; None is as if it were not given.
        The service is not called before the first question. Raises InvalidInput for a wrong setting, MissingFile,
        CorruptFile and IdentityMismatch for the bundle and the knowledge bases of this device, and ProviderError.
        """
        given: dict[str, Any] = {"bundle": bundle, "service": service, **options}
        given = {name: value for name, value in given.items() if value is not None}
        if settings is not None and given:
            raise InvalidInput(f"give either settings or {', '.join(given)}")
        return cls(Engine.open(settings or EdgeSettings(**given)))

    @property
    def bundle(self) -> Bundle:
        """The opened bundle."""
        return self.engine.bundle

    @property
    def local(self) -> LocalKnowledgeBases:
        """The knowledge bases of this device; raises ModelClosed."""
        return self.engine.local

    def with_knowledge_base(self, name: str) -> EdgeModel:
        """The same model with another knowledge base of the same service, or several ("atlas,firm").

        Weights, embedder and cached memories are shared. Close it apart from this one. Raises InvalidInput and
        ModelClosed.
        """
        return EdgeModel(self.engine.with_knowledge_base(name))

    def require_knowledge_bases(self, names: str) -> None:
        """Raise InvalidInput for one ("atlas,firm") that neither this device has nor a service that answers."""
        self.engine.require_knowledge_bases(names)

    def ask(
        self,
        messages: str | Sequence[Message],
        *,
        memory: RecallMode | str | None = None,
        document: str | Sequence[FileDocument] = "",
        title: str = "",
        progress: Progress | None = None,
        about: str = "",
        **options: Unpack[SamplingOptions],
    ) -> Result:
        """The whole answer to a question or a conversation; arguments and errors as `generate`."""
        return self.generate(
            messages, memory=memory, document=document, title=title, progress=progress, about=about, **options
        ).result()

    def generate(
        self,
        messages: str | Sequence[Message],
        *,
        memory: RecallMode | str | None = None,
        document: str | Sequence[FileDocument] = "",
        title: str = "",
        progress: Progress | None = None,
        about: str = "",
        **options: Unpack[SamplingOptions],
    ) -> AnswerStream:
        """Answer a question (str) or a conversation, event by event: Recalled, Token, and Finished at the end.

        document: a text that the last question is about, or the documents of a file. It stands before the question
        where the cache has room for it; a longer one is written as memories first, for this answer alone (see
        `ChatSession.remember`, also for title and progress).

        about: a document of this device, by its key, file name or title, that the question is about as a whole. All of
        its memories are read in their order, at once or in turns (`edge_client.generate.whole`), and no others.

        The last conversations are kept as sessions: one that goes on, is repeated or has its last question
        changed reads only what is new, and one that fills the cache goes on as a `ChatSession` does. options: see
        `Sampling`. A service that is down, slow or wrong never raises here: its Recalled event carries the error and
        the answer goes on. Arguments are checked at once, before the first event is computed. Raises InvalidInput,
        ContextFull, ModelClosed.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        policy = self.engine.policy_with(memory)
        self.bundle.chat.prompt(messages)  # refuses what is no conversation
        if about and document:
            raise InvalidInput("give either a document or the name of one that the question is about, not both")
        if about:
            return document_stream(self.engine, about, messages, policy, options)
        if document:
            *before, question = messages
            text = document if isinstance(document, str) else joined(document)
            whole = [*before, {**question, "content": f"{text}\n\n{question['content']}"}]
            if len(self.bundle.chat.prompt(whole).ids) >= self.engine.mark:
                if policy.mode is RecallMode.off:
                    raise InvalidInput("memory is off, and without it the document is longer than the context")
                session = ChatSession(self.engine, before, policy)
                session.remember(document, title, progress=progress)
                return session.reply(question, policy, options)
            messages = whole
        session = self._session_of(messages, policy)
        try:
            return session.reply(messages[-1], policy, options)
        finally:
            with self._choosing:
                if not self.engine.closed:
                    self._sessions = [session, *self._sessions][: max(KEPT, self.engine.decoder.parallel)]

    def complete(
        self, text: str, *, memory: RecallMode | str | None = None, **options: Unpack[SamplingOptions]
    ) -> AnswerStream:
        """Continue a text as it is, without the chat template; special tokens in it are encoded as such.

        Otherwise as `generate`.
        """
        if not isinstance(text, str) or not text:
            raise InvalidInput("the text to continue is empty: give at least one character")
        ids = self.bundle.tokenizer.encode(text)
        prompt = Prompt(ids, [True] * len(ids))
        sampling, policy = checked(self.engine, prompt, options), self.engine.policy_with(memory)
        return answer_stream(self.engine, self.engine.sequence(), prompt, sampling, policy)

    def session(
        self, system: str | None = None, *, messages: Sequence[Message] = (), memory: RecallMode | str | None = None
    ) -> ChatSession:
        """A conversation that keeps its caches.

        system: the system message, before all others. messages: those before, if any. Raises InvalidInput,
        ModelClosed.
        """
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        return ChatSession(self.engine, messages, self.engine.policy_with(memory))

    def load_session(self, path: str | Path, *, memory: RecallMode | str | None = None) -> ChatSession:
        """A conversation that `ChatSession.save` wrote, on this or another device with the same model.

        Raises MissingFile, CorruptFile, IdentityMismatch, ContextFull, ModelClosed.
        """
        return ChatSession.load(self.engine, path, self.engine.policy_with(memory))

    def remember(
        self,
        text: str,
        *,
        key: str,
        title: str = "",
        metadata: Mapping[str, str] | None = None,
        knowledge_base: str = DEFAULT_NAME,
    ) -> int:
        """Write a text into a knowledge base of this device; answers read it from then on. Nothing of it is sent.

        While answers are computed it takes a quarter of a core at most, so that they are hardly slower.
        key: names the text; one of the same key is replaced, with all pages or rows that it had as a file; an equal one
        costs nothing. Returns the number of its memories. Raises InvalidInput for a text that is empty or too long
        and for an empty key, StorageError (NO_WRITER, DISK_FULL), CorruptFile, ModelClosed.
        """
        document = FileDocument(key, key, title, text, metadata or {})
        outcomes = self.remember_documents([document], knowledge_base=knowledge_base)
        *_, last = (one for one in outcomes if one.outcome != "dropped")
        if last.outcome == "failed":
            raise InvalidInput(f"{key!r} cannot be remembered: {last.message}")
        return last.references

    def remember_documents(
        self, documents: Iterable[FileDocument], *, knowledge_base: str = DEFAULT_NAME
    ) -> Iterator[DocumentOutcome]:
        """As `remember`, of whole files (`memory3.formats`); yields how far it is, what failed and what was dropped."""
        local, writer = self.engine.local, self.engine.writer
        yield from remember_documents(local.base(knowledge_base, writer.embedder.dim), writer, documents)

    def forget(self, key: str, *, knowledge_base: str = DEFAULT_NAME) -> bool:
        """Remove a text from a knowledge base of this device, for all models; whether it was there.

        key: of a text, or of a file whose pages and rows all go; or its name or title, as `about` in `generate`. Raises
        MissingFile, and InvalidInput where several documents are called so.
        """
        return bool(self.local.forget(knowledge_base, key))

    def correct(self, key: str, chunk_number: int, text: str, *, knowledge_base: str = DEFAULT_NAME) -> bool:
        """Replace the text of one memory of a document of this device, or remove it with an empty text.

        key: of a document, or its name or title, as `about` in `generate`; of a file with several pages or rows, that
        of one of them. text: without the document's title. Returns whether the memory was there. It holds until the
        document is remembered with another text. Raises InvalidInput for a text that one memory cannot hold,
        MissingFile, StorageError, ModelClosed.
        """
        base = self.local.base(knowledge_base)
        document = base.document(key)
        if document is None:
            return False
        if not text.strip():
            return base.correct(document, chunk_number)
        return correct_memory(base, self.engine.writer, document, chunk_number, text)

    def close(self) -> None:
        """End the answers that are under way, then the connection to the service. Idempotent.

        The caches go now; weights and memories once nobody holds the model or a session of it any more.
        """
        self.engine.close()
        with self._choosing:
            self._sessions = []

    def __enter__(self) -> EdgeModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _session_of(self, messages: Sequence[Message], policy: RecallPolicy) -> ChatSession:
        """A session that holds all messages but the last, taken from those that are kept; else a new one.

        Where the last question is repeated or changed, it takes back its own. A new one keeps
        the tokens that the answers were generated with: a text has several tokenizations, and the caches hold this one.
        """
        messages = list(messages)
        generated: Mapping[int, Sequence[int]] = {}
        most = 0
        with self._choosing:
            for session in self._sessions:
                held = session.messages
                goes_on = held == messages[:-1]
                again = held[:-2] == messages[:-1] and [m["role"] for m in held[-2:]] == ["user", "assistant"]
                if not session.busy and (goes_on or again):
                    self._sessions.remove(session)
                    break
                same = common_length(held, messages)
                if same > most:
                    most, known = same, session.conversation.generated.copy()
                    generated = {n: tokens for n, tokens in known.items() if n < same}
            else:
                return ChatSession(self.engine, messages[:-1], policy, generated)
        if not goes_on:
            session.take_back()
        return session


_OPEN: weakref.WeakSet[EdgeModel] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread may be inside the runtime when the interpreter ends: it would be aborted there."""
    for model in list(_OPEN):
        model.close()
