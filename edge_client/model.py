"""`EdgeModel`: the SDK. A bundle is opened once; conversations and questions share its weights and its recalling."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_client.decoder.batch import Decoder
from edge_client.decoder.sequence import Sequence as Text
from edge_client.errors import Cancellation, ContextFull, ModelClosed, RetrievalError
from edge_client.generate.conversation import REMEMBER_AT, Conversation, Progress
from edge_client.generate.loop import Answer
from edge_client.generate.prompt import common_length
from edge_client.generate.sampling import Sampling
from edge_client.local.folder import DEFAULT_NAME, LocalKnowledgeBases
from edge_client.local.folder import Remembered as LocalOutcome
from edge_client.local.folder import remember as remember_documents
from edge_client.local.writer import MemoryWriter
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import MemoryCache, Recaller
from edge_client.recall.worker import RecallWorker
from edge_client.session import ChatSession
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerStream, Result
from edge_client.wire.client import MemoryClient, names_of
from memory3.bundle import Bundle
from memory3.chat import Message, Prompt
from memory3.embedder import Embedder
from memory3.errors import CorruptFile, InvalidInput
from memory3.formats import FileDocument

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

    def __init__(
        self,
        bundle: Bundle,
        decoder: Decoder,
        recaller: Recaller,
        settings: EdgeSettings,
        local: LocalKnowledgeBases | None = None,
    ) -> None:
        """See `open`. local: None to open what the settings name. Raises CorruptFile for a decoder of another shape."""
        if decoder.config != bundle.config:
            raise CorruptFile("decoder.onnx has another shape than the manifest says: export the bundle again")
        self.bundle, self.decoder, self.recaller = bundle, decoder, recaller
        self.graph = decoder.graph
        self.policy, self._settings = settings.recall_policy, settings
        self.mark = int(REMEMBER_AT * decoder.context)
        self._local = _local(bundle, settings) if local is None else local
        self.closed = False
        self.worker = RecallWorker(recaller)
        self.background = ThreadPoolExecutor(1, "memory3-remember", initializer=_lower_priority)
        self.closing = Cancellation()
        # Before there are threads: a cached property is made twice if two read it at once.
        _ = bundle.chat
        self._under_way: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._choosing = threading.Lock()  # a session's lock may be taken within, and this one within none
        self._sessions: list[ChatSession] = []  # of `generate`, the last one first
        self._writer: MemoryWriter | None = None
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
        settings = settings or EdgeSettings(**given)
        opened = Bundle.open(settings.bundle)
        if settings.minimum_score is None:
            settings = settings.model_copy(update={"minimum_score": opened.manifest.minimum_score})
        local = _local(opened, settings)  # refused before weights are loaded
        decoder = Decoder.open(
            opened,
            threads=settings.threads,
            provider=settings.provider,
            context=settings.context,
            parallel=settings.parallel,
            model=settings.model,
        )
        embedder = opened.embedder(threads=settings.embedder_threads)
        cache = MemoryCache(int(settings.memory_cache_mb * 2**20))
        model = cls._reading(opened, decoder, embedder, cache, local, settings)
        model.recaller.prepare()
        return model

    def with_knowledge_base(self, name: str) -> EdgeModel:
        """The same model with another knowledge base of the same service, or several ("atlas,firm").

        Weights, embedder and cached memories are shared. Close it apart from this one. Raises InvalidInput and
        ModelClosed.
        """
        settings, recaller = self._settings.model_copy(update={"knowledge_base": name}), self.recaller
        return self._reading(self.bundle, self.decoder, recaller.embedder, recaller.cache, self.local, settings)

    def require_knowledge_bases(self, names: str) -> None:
        """Raise InvalidInput for one ("atlas,firm") that neither this device has nor a service that answers."""
        client = self.recaller.client
        with suppress(RetrievalError):
            known = {base.name for base in client.knowledge_bases()} | {*self.local.documents()} if client else set()
            if client and (unknown := [name for name in names_of(names) if name not in known]):
                there = ", ".join(sorted(known)) or "none"
                raise InvalidInput(f"there is no knowledge base {unknown[0]!r}; there are: {there}")

    @classmethod
    def _reading(
        cls,
        bundle: Bundle,
        decoder: Decoder,
        embedder: Embedder,
        cache: MemoryCache,
        local: LocalKnowledgeBases,
        settings: EdgeSettings,
    ) -> EdgeModel:
        """With a recaller of its own for the knowledge base in the settings."""
        client = None
        if not settings.offline:
            client = MemoryClient(
                settings.channel,
                settings.knowledge_base,
                bundle.identity,
                bundle.manifest.embedder_id,
                deadline_s=settings.deadline_s,
                minimum_score=settings.minimum_score,
                payload_bytes=bundle.memory_format.payload_bytes(bundle.config.memory.reference_tokens),
            )
        recaller = Recaller(
            embedder,
            client,
            decoder.graph.reading(bundle.memory_format),
            local=[local],
            stand_ins=local.stand_ins(settings.knowledge_base),
            cache=cache,
        )
        return cls(bundle, decoder, recaller, settings, local)

    def ask(
        self,
        messages: str | Sequence[Message],
        *,
        memory: RecallMode | str | None = None,
        document: str = "",
        title: str = "",
        progress: Progress | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Result:
        """The whole answer to a question or a conversation; arguments and errors as `generate`."""
        return self.generate(
            messages, memory=memory, document=document, title=title, progress=progress, **options
        ).result()

    def generate(
        self,
        messages: str | Sequence[Message],
        *,
        memory: RecallMode | str | None = None,
        document: str = "",
        title: str = "",
        progress: Progress | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AnswerStream:
        """Answer a question (str) or a conversation, event by event: Recalled, Token, and Finished at the end.

        document: a text that the last question is about. It stands before the question where the cache has room for
        it; a longer one is written as memories first, for this answer alone (see `ChatSession.remember`, also for
        title and progress).

        The last conversations are kept as sessions: one that goes on, is asked again or has its last question
        changed reads only what is new, and one that fills the cache goes on as a `ChatSession` does. options: see
        `Sampling`. A service that is down, slow or wrong never raises here: its Recalled event carries the error and
        the answer goes on. Arguments are checked at once, before the first event is computed. Raises InvalidInput,
        ContextFull, ModelClosed.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        policy = self.policy_with(memory)
        self.bundle.chat.prompt(messages)  # refuses what is no conversation
        if document:
            *before, question = messages
            whole = [*before, {**question, "content": f"{document}\n\n{question['content']}"}]
            if len(self.bundle.chat.prompt(whole).ids) >= self.mark:
                session = ChatSession(self, before, policy)
                if policy.mode is not RecallMode.off:
                    session.remember(document, title, progress=progress)
                return session.reply(question, policy, options)
            messages = whole
        session = self._session_of(messages, policy)
        try:
            return session.reply(messages[-1], policy, options)
        finally:
            with self._choosing:
                if not self.closed:
                    self._sessions = [session, *self._sessions][: max(KEPT, self.decoder.parallel)]

    def complete(
        self, text: str, *, memory: RecallMode | str | None = None, **options: Unpack[SamplingOptions]
    ) -> AnswerStream:
        """Continue a text as it is, without the chat template; special tokens that it spells are meant.

        Otherwise as `generate`.
        """
        if not isinstance(text, str) or not text:
            raise InvalidInput("the text to continue is empty: give at least one character")
        ids = self.bundle.tokenizer.encode(text)
        prompt = Prompt(ids, [True] * len(ids))
        sampling, policy = self.checked(prompt, options), self.policy_with(memory)
        return self.answer(self.sequence(), prompt, sampling, policy, lambda _: None)

    def session(
        self, system: str | None = None, *, messages: Sequence[Message] = (), memory: RecallMode | str | None = None
    ) -> ChatSession:
        """A conversation that keeps its caches.

        system: the system message, before all others. messages: what was said before, if anything. Raises InvalidInput,
        ModelClosed.
        """
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        return ChatSession(self, messages, self.policy_with(memory))

    def load_session(self, path: str | Path, *, memory: RecallMode | str | None = None) -> ChatSession:
        """A conversation that `ChatSession.save` wrote, on this or another device with the same model.

        Raises MissingFile, CorruptFile, IdentityMismatch, ContextFull, ModelClosed.
        """
        return ChatSession.load(self, path, self.policy_with(memory))

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
        key: names the text; one of the same key is replaced, an equal one costs nothing. Returns the number of its
        memories. Raises InvalidInput for a text that is empty or too long, StorageError (NO_WRITER, DISK_FULL),
        CorruptFile, ModelClosed.
        """
        document = FileDocument(key, key, title, text, metadata or {})
        *_, last = self.remember_documents([document], knowledge_base=knowledge_base)
        if last.outcome == "failed":
            raise InvalidInput(f"{key!r} cannot be remembered: {last.message}")
        return last.references

    def remember_documents(
        self, documents: Iterable[FileDocument], *, knowledge_base: str = DEFAULT_NAME
    ) -> Iterator[LocalOutcome]:
        """As `remember`, of files (`memory3.formats`); yields how far it is, and which of them failed."""
        local, writer = self.local, self.writer
        yield from remember_documents(local.base(knowledge_base, writer.embedder.dim), writer, documents)

    def forget(self, key: str, *, knowledge_base: str = DEFAULT_NAME) -> bool:
        """Remove a text from a knowledge base of this device; whether it was there. Raises MissingFile."""
        return self.local.base(knowledge_base).delete(key)

    @property
    def local(self) -> LocalKnowledgeBases:
        """The knowledge bases of this device; raises ModelClosed."""
        self.check_open()
        return self._local

    def close(self) -> None:
        """End the answers that are under way, then the connection to the service. Idempotent.

        The caches go now; weights and memories once nobody holds the model or a session of it any more.
        """
        with self._lock:
            self.closed = True
            streams = list(self._under_way)
        with self._choosing:
            self._sessions = []
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.wait_for_step()
        self.closing.cancel()
        self.background.shutdown(cancel_futures=True)
        self.worker.close()
        self.recaller.close()

    def __enter__(self) -> EdgeModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What sessions need.

    def sequence(self, source: object = None) -> Text:
        """The key-values of one more conversation; raises ModelClosed. source: of its memories, if it has its own."""
        self.check_open()
        return self.decoder.sequence(source or self.recaller)

    @property
    def writer(self) -> MemoryWriter:
        """Made at the first need. Raises StorageError (NO_WRITER), CorruptFile, ModelClosed."""
        self.check_open()
        if self._writer is None:
            self._writer = MemoryWriter(self.bundle, embedder=self.recaller.embedder, decoder=self.decoder)
        return self._writer

    def check_open(self) -> None:
        """Raise ModelClosed after `close`."""
        if self.closed:
            raise ModelClosed("the model was closed: open it again with EdgeModel.open")

    def checked(self, prompt: Prompt, options: Mapping[str, Any]) -> Sampling:
        """Raise InvalidInput for wrong options and ContextFull for a prompt after which not one token fits."""
        self.check_open()
        sampling = Sampling.of(options)
        sampling.check_vocabulary(self.bundle.config.vocabulary)
        if len(prompt.ids) >= self.decoder.room:
            longer = "open the model with a longer context (EDGE_CLIENT_CONTEXT)"
            if self.bundle.writer is None:
                help = (
                    f"the bundle has no writer.onnx, with which old turns would become memories: export it again with"
                    f" `memory-model export`, or {longer}"
                )
            else:
                help = f"give a long text as a document (ask --file, ChatSession.remember), or {longer}"
            raise ContextFull(f"the prompt has {len(prompt.ids)} tokens, {self.decoder.room - 1} fit", help=help)
        return sampling

    def policy_with(self, memory: RecallMode | str | None, policy: RecallPolicy | None = None) -> RecallPolicy:
        """The policy, by default the model's, with another mode; raises InvalidInput for one that does not exist."""
        policy = policy or self.policy
        try:
            return policy if memory is None else replace(policy, mode=RecallMode(memory))
        except ValueError:
            modes = ", ".join(mode.value for mode in RecallMode)
            raise InvalidInput(f"memory must be one of {modes}, not {memory!r}") from None

    def answer(
        self,
        sequence: Text,
        prompt: Prompt,
        sampling: Sampling,
        policy: RecallPolicy,
        done: Callable[[Answer], None],
        conversation: Conversation | None = None,
    ) -> AnswerStream:
        """An answer to a checked prompt; nothing is computed before its first event is requested."""
        cancellation = Cancellation()
        answer = Answer(self, sequence, prompt, sampling, policy, cancellation, conversation)
        stream = AnswerStream(answer, cancellation, done)
        with self._lock:
            self.check_open()
            self._under_way.add(stream)
        return stream

    def _session_of(self, messages: Sequence[Message], policy: RecallPolicy) -> ChatSession:
        """A session that said all messages but the last, taken from those that are kept; else a new one.

        Where the last question is asked again or anew, it takes back its own. A new one spells the answers in the
        messages as they were generated: a text has several tokenizations, and the caches hold this one.
        """
        messages = list(messages)
        spelled: Mapping[int, Sequence[int]] = {}
        most = 0
        with self._choosing:
            for session in self._sessions:
                said = session.messages
                goes_on = said == messages[:-1]
                again = said[:-2] == messages[:-1] and [m["role"] for m in said[-2:]] == ["user", "assistant"]
                if not session.busy and (goes_on or again):
                    self._sessions.remove(session)
                    break
                same = common_length(said, messages)
                if same > most:
                    most, known = same, session.conversation.spelled.copy()
                    spelled = {n: tokens for n, tokens in known.items() if n < same}
            else:
                return ChatSession(self, messages[:-1], policy, spelled)
        if not goes_on:
            session.take_back()
        return session


_OPEN: weakref.WeakSet[EdgeModel] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread may be inside the runtime when the interpreter ends: it would be aborted there."""
    for model in list(_OPEN):
        model.close()


def _local(bundle: Bundle, settings: EdgeSettings) -> LocalKnowledgeBases:
    return LocalKnowledgeBases(settings.local, bundle, minimum_score=settings.minimum_score)


def _lower_priority() -> None:
    """Of this thread, where Linux has one for each: beside decoding on the same core it gets about a quarter."""
    if sys.platform == "linux":
        os.nice(5)
