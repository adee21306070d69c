"""`EdgeModel`: the SDK. A bundle is opened once; conversations and questions share its weights and its recalling."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edge_client.cancellation import Cancellation
from edge_client.decoder.batch import Decoder
from edge_client.decoder.sequence import Sequence as Text
from edge_client.errors import ContextFull, ModelClosed
from edge_client.events import Result
from edge_client.generate.conversation import Conversation
from edge_client.generate.loop import Answer
from edge_client.generate.past import Past, Progress
from edge_client.generate.pool import IdleSequences, Spellings
from edge_client.generate.sampling import Sampling
from edge_client.local.folder import DEFAULT_NAME, LocalKnowledgeBases, Remembered
from edge_client.local.folder import remember as remember_documents
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.writer import MemoryWriter
from edge_client.pull.pack import open_pack
from edge_client.recall.cache import MemoryCache
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import Recaller
from edge_client.recall.worker import Recalling, RecallWorker
from edge_client.session import ChatSession
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerStream
from edge_client.wire.client import MemoryClient
from memory_model.bundle import Bundle
from memory_model.chat import Message, Prompt
from memory_model.errors import CorruptFile, InvalidInput
from memory_model.formats import FileDocument

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_client.generate.sampling import SamplingOptions
    from edge_client.settings import EdgeOptions

KEPT = 4
"""Sequences that keep their key-values after an answer of `generate` or `complete`."""


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
        self, bundle: Bundle, decoder: Decoder, recaller: Recalling | None, policy: RecallPolicy | None = None
    ) -> None:  # fmt: skip
        """recaller: None answers without memories. Raises CorruptFile for a decoder of another shape."""
        if decoder.config != bundle.config:
            raise CorruptFile(
                "decoder.onnx has another shape than the manifest says: export the bundle again"
            )
        self.bundle, self.decoder, self.recaller = bundle, decoder, recaller
        self.graph = decoder.graph
        self.policy = policy or RecallPolicy()
        self.remember_at: float = EdgeSettings.model_fields["remember_at"].default
        self.closed = False
        self._settings: EdgeSettings | None = None  # those of `open`, and the pack of their knowledge base
        self._pack: LocalKnowledgeBase | None = None
        self.worker = RecallWorker(recaller) if recaller is not None else None
        self.background = ThreadPoolExecutor(1, "memory3-remember")
        self.closing = Cancellation()
        # Before there are threads: a cached property is made twice if two read it at once.
        _ = bundle.chat
        self._under_way: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._idle: IdleSequences[Text] = IdleSequences(max(KEPT, decoder.parallel))
        self._spellings = Spellings()
        self._writer: MemoryWriter | None = None
        self._local: LocalKnowledgeBases | None = None
        # Conversations of `generate` that fill the cache, the last one first; a session's lock may be taken within.
        self._long: list[ChatSession] = []
        self._choosing = threading.Lock()
        _OPEN.add(self)

    @classmethod
    def open(
        cls, bundle: str | Path | None = None, service: str | None = None, *, settings: EdgeSettings | None = None,
        **options: Unpack[EdgeOptions],
    ) -> EdgeModel:  # fmt: skip
        """Open a bundle and name a service (neither is needed if the environment names them).

        settings: instead of all other arguments. options: fields of EdgeSettings; None is as if it were not given.
        The service is not called before the first question. Raises InvalidInput for a wrong setting or a pack of
        another knowledge base, MissingFile, CorruptFile and IdentityMismatch for the bundle and the pack, and
        ProviderError.
        """
        given: dict[str, Any] = {"bundle": bundle, "service": service, **options}
        given = {name: value for name, value in given.items() if value is not None}
        if settings is not None and given:
            raise InvalidInput(f"give either settings or {', '.join(given)}")
        settings = settings or EdgeSettings(**given)
        opened = Bundle.open(settings.bundle)
        if settings.minimum_score is None:
            settings = settings.model_copy(update={"minimum_score": opened.manifest.minimum_score})
        decoder = Decoder.open(
            opened, threads=settings.threads, provider=settings.provider, context=settings.context,
            parallel=settings.parallel,
        )  # fmt: skip
        pack = open_pack(settings, opened)
        local = LocalKnowledgeBases(settings.local, opened, minimum_score=settings.minimum_score)
        if len(local) and "service" not in settings.model_fields_set:
            settings = settings.model_copy(update={"offline": True})
        recaller = Recaller(
            opened.embedder(threads=settings.embedder_threads),
            _client(opened, settings, settings.knowledge_base), opened.memory_format,
            pack=pack, local=[local] if len(local) else [], cache=MemoryCache(int(settings.memory_cache_mb * 2**20)),
        )  # fmt: skip
        model = cls(opened, decoder, recaller, settings.recall_policy)
        model._settings, model._pack, model._local = settings, pack, local
        model.remember_at = settings.remember_at
        return model

    def with_knowledge_base(self, name: str) -> EdgeModel:
        """The same model with another knowledge base of the same service, or several ("atlas,firm").

        Weights, embedder and cached memories are shared. Close it apart from this one. Raises InvalidInput where the
        model was not made by `open`, ModelClosed.
        """
        mine, settings = self.recaller, self._settings
        if settings is None or not isinstance(mine, Recaller):
            raise InvalidInput("only a model made by EdgeModel.open knows its service: open it so")
        recaller = Recaller(
            mine.embedder, _client(self.bundle, settings, name), mine.memory_format, cache=mine.cache,
            pack=self._pack if name == settings.knowledge_base else None, local=mine.local,
        )  # fmt: skip
        model = EdgeModel(self.bundle, self.decoder, recaller, self.policy)
        model._settings, model._pack, model._local = settings, self._pack, self._local
        model.remember_at = self.remember_at
        return model

    def ask(
        self, messages: str | Sequence[Message], *, memory: RecallMode | str | None = None, document: str = "",
        title: str = "", progress: Progress | None = None, **options: Unpack[SamplingOptions],
    ) -> Result:  # fmt: skip
        """The whole answer to a question or a conversation; arguments and errors as `generate`."""
        return self.generate(
            messages, memory=memory, document=document, title=title, progress=progress, **options
        ).result()

    def generate(
        self, messages: str | Sequence[Message], *, memory: RecallMode | str | None = None,
        lead_tokens: int | None = None, document: str = "", title: str = "", progress: Progress | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AnswerStream:  # fmt: skip
        """Answer a question (str) or a conversation, event by event: Recalled, Token, and Finished at the end.

        document: a text that the last question is about. It stands before the question where the cache has room for
        it; a longer one is written as memories first, for this answer alone (see `ChatSession.remember`, also for
        title and progress).

        What a conversation has in common with one of those that were answered last is not read again. One that fills
        the cache goes on as a `ChatSession` does, which is kept for the call that continues it. options: see
        `Sampling`. A service that is down, slow or wrong never raises here: its Recalled event carries the error and
        the answer goes on. Arguments are checked at once, before the first event is computed. Raises InvalidInput,
        ContextFull, ModelClosed.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if document:
            *before, question = messages
            whole = [*before, {**question, "content": f"{document}\n\n{question['content']}"}]
            if len(self.bundle.chat.prompt(whole).ids) >= self.remember_at * self.decoder.context:
                session = self.session(messages=before, memory=memory, lead_tokens=lead_tokens)
                if self.policy_with(memory).mode is not RecallMode.off:
                    session.remember(document, title, progress=progress)
                return session.send(question["content"], **options)
            messages = whole
        spelled = self._spellings.of(messages) if isinstance(messages, list | tuple) else {}
        prompt = self.bundle.chat.prompt(messages, spelled=spelled)
        policy = self.policy_with(memory, lead_tokens)
        if self._too_long(messages, prompt, policy):
            return self._session_of(messages[:-1], policy).send(
                messages[-1]["content"], memory=memory, **options
            )
        return self._generate(prompt, policy, options)

    def complete(
        self, text: str, *, memory: RecallMode | str | None = None, lead_tokens: int | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AnswerStream:  # fmt: skip
        """Continue a text as it is, without the chat template; special tokens that it spells are meant.

        Otherwise as `generate`.
        """
        return self._generate(self._raw_prompt(text), self.policy_with(memory, lead_tokens), options)

    def check(self, messages: Sequence[Message], **options: Unpack[SamplingOptions]) -> int:
        """Tokens of the prompt of `generate`; raises what it would raise, and computes nothing."""
        prompt = self.bundle.chat.prompt(messages)
        self.checked(prompt, options, fits=self._too_long(messages, prompt, self.policy))
        return len(prompt.ids)

    def check_text(self, text: str, **options: Unpack[SamplingOptions]) -> int:
        """Tokens of the prompt of `complete`; raises what it would raise, and computes nothing."""
        prompt = self._raw_prompt(text)
        self.checked(prompt, options)
        return len(prompt.ids)

    def session(
        self, system: str | None = None, *, messages: Sequence[Message] = (),
        memory: RecallMode | str | None = None, lead_tokens: int | None = None,
    ) -> ChatSession:  # fmt: skip
        """A conversation that keeps its caches.

        system: the system message, before all others. messages: what was said before, if anything. lead_tokens:
        instead of the model's setting. Raises InvalidInput, ModelClosed.
        """
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        return ChatSession(self, messages, self.policy_with(memory, lead_tokens))

    def load_session(self, path: str | Path, *, memory: RecallMode | str | None = None) -> ChatSession:
        """A conversation that `ChatSession.save` wrote, on this or another device with the same model.

        Raises MissingFile, CorruptFile, IdentityMismatch, ContextFull, ModelClosed.
        """
        return ChatSession.load(self, path, self.policy_with(memory))

    def remember(
        self, text: str, *, key: str, title: str = "", metadata: Mapping[str, str] | None = None,
        knowledge_base: str = DEFAULT_NAME,
    ) -> int:  # fmt: skip
        """Write a text into a knowledge base of this device; answers read it from then on. Nothing of it is sent.

        key: names the text; one of the same key is replaced, an equal one costs nothing. Returns the number of its
        memories. Raises InvalidInput for a text that is empty or too long, and where the model was not made by `open`;
        StorageError (NO_WRITER, DISK_FULL), CorruptFile, ModelClosed.
        """
        document = FileDocument(key, key, title, text, metadata or {})
        *_, last = self.remember_documents([document], knowledge_base=knowledge_base)
        if last.outcome == "failed":
            raise InvalidInput(f"{key!r} cannot be remembered: {last.message}")
        return last.references

    def remember_documents(
        self, documents: Iterable[FileDocument], *, knowledge_base: str = DEFAULT_NAME
    ) -> Iterator[Remembered]:  # fmt: skip
        """As `remember`, of files (`memory_model.formats`); yields how far it is, and which of them failed."""
        local, writer = self.local, self._memory_writer()
        assert isinstance(self.recaller, Recaller)  # `local` would have raised
        base = local.base(knowledge_base, writer.embedder.dim)
        if local not in self.recaller.local:
            self.recaller.local.append(local)
        yield from remember_documents(base, writer, documents)

    def forget(self, key: str, *, knowledge_base: str = DEFAULT_NAME) -> bool:
        """Remove a text from a knowledge base of this device; whether it was there. Raises MissingFile."""
        return self.local.base(knowledge_base).delete(key)

    @property
    def local(self) -> LocalKnowledgeBases:
        """The knowledge bases of this device; raises InvalidInput for a model not made by `open`, ModelClosed."""
        self.check_open()
        if self._local is None:
            raise InvalidInput(
                "only a model made by EdgeModel.open has knowledge bases of its own: open it so"
            )
        return self._local

    def close(self) -> None:
        """End the answers that are under way, then the connection to the service. Idempotent.

        The caches go now; weights and memories once nobody holds the model or a session of it any more.
        """
        with self._lock:
            self.closed = True
            streams = list(self._under_way)
        self._idle.clear()
        self._long.clear()
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.wait_for_step()
        self.closing.cancel()
        self.background.shutdown(cancel_futures=True)
        if self.worker is not None:
            self.worker.close()
        if isinstance(self.recaller, Recaller):
            self.recaller.close()

    def __enter__(self) -> EdgeModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What sessions need.

    def sequence(self, source: object = None) -> Text:
        """The key-values of one more conversation; raises ModelClosed. source: of its memories, if it has its own."""
        self.check_open()
        return self.decoder.sequence(source or self.recaller)

    @property
    def writes(self) -> bool:
        """Whether the bundle can write memories, and what is written can be read."""
        return self.worker is not None and self.bundle.writer is not None

    def past(self, saved: bytes = b"") -> Past:
        """A conversation's own memories, new or as they were saved.

        Raises StorageError (NO_WRITER, DISK_FULL), CorruptFile, ModelClosed.
        """
        self.check_open()
        return Past(self._memory_writer(), saved)

    def _memory_writer(self) -> MemoryWriter:
        if self._writer is None:
            self._writer = MemoryWriter(self.bundle, embedder=getattr(self.recaller, "embedder", None))
        return self._writer

    def check_open(self) -> None:
        """Raise ModelClosed after `close`."""
        if self.closed:
            raise ModelClosed("the model was closed: open it again with EdgeModel.open")

    def checked(self, prompt: Prompt, options: Mapping[str, Any], *, fits: bool = False) -> Sampling:
        """Raise InvalidInput for wrong options and ContextFull for a prompt after which not one token fits.

        fits: whether turns will leave the prompt until it does.
        """
        self.check_open()
        sampling = Sampling.of(options)
        sampling.check_vocabulary(self.bundle.config.vocabulary)
        if not fits and len(prompt.ids) >= self.decoder.room:
            longer = "open the model with a longer context (EDGE_CLIENT_CONTEXT)"
            if self.bundle.writer is None:
                help = (
                    f"the bundle has no writer.onnx, with which old turns would become memories: export it again with"
                    f" `memory-model export`, or {longer}"
                )
            else:
                help = f"give a long text as a document (ask --file, ChatSession.remember), or {longer}"
            raise ContextFull(
                f"the prompt has {len(prompt.ids)} tokens, {self.decoder.room - 1} fit", help=help
            )
        return sampling

    def policy_with(
        self, memory: RecallMode | str | None, lead_tokens: int | None = None, policy: RecallPolicy | None = None
    ) -> RecallPolicy:  # fmt: skip
        """The policy, by default the model's, with other values; raises InvalidInput for a mode that does not exist."""
        policy = policy or self.policy
        try:
            mode = policy.mode if memory is None else RecallMode(memory)
        except ValueError:
            modes = ", ".join(mode.value for mode in RecallMode)
            raise InvalidInput(f"memory must be one of {modes}, not {memory!r}") from None
        return replace(
            policy, mode=mode, lead_tokens=policy.lead_tokens if lead_tokens is None else lead_tokens
        )

    def answer(
        self, sequence: Text, prompt: Prompt, sampling: Sampling, policy: RecallPolicy,
        done: Callable[[Answer], None], conversation: Conversation | None = None,
    ) -> AnswerStream:  # fmt: skip
        """An answer to a checked prompt; nothing is computed before its first event is requested."""
        cancellation = Cancellation()
        worker = None if policy.mode is RecallMode.off else self.worker
        answer = Answer(
            sequence, prompt, sampling, self.bundle.tokenizer, worker, policy, cancellation,
            self.bundle.manifest.refusal, conversation,
        )  # fmt: skip
        stream = AnswerStream(answer, cancellation, done)
        with self._lock:
            self.check_open()
            self._under_way.add(stream)
        return stream

    def _generate(self, prompt: Prompt, policy: RecallPolicy, options: Mapping[str, Any]) -> AnswerStream:
        sampling = self.checked(prompt, options)
        sequence = self._idle.take(prompt.ids) or self.sequence()

        def done(answer: Answer) -> None:
            if answer.said:
                self._spellings.remember(answer.shown, answer.said)
            if not self.closed:
                self._idle.give(sequence)

        return self.answer(sequence, prompt, sampling, policy, done)

    def _too_long(self, messages: Sequence[Message], prompt: Prompt, policy: RecallPolicy) -> bool:
        """Whether turns before the last question must become memories."""
        return (
            self.writes and policy.mode is not RecallMode.off and messages[-1]["role"] == "user"
            and sum(m["role"] == "user" for m in messages) > 1
            and len(prompt.ids) >= self.remember_at * self.decoder.context
        )  # fmt: skip

    def _session_of(self, messages: Sequence[Message], policy: RecallPolicy) -> ChatSession:
        """The session that said these messages, or these and a last question that is asked again; else a new one."""
        with self._choosing:
            for session in self._long:
                said = session.messages
                if said[: len(messages)] != list(messages) or len(said) not in (
                    len(messages),
                    len(messages) + 2,
                ):
                    continue
                self._long.remove(session)
                if len(said) > len(messages):
                    session.take_back()
                break
            else:
                session = ChatSession(self, messages, policy)
            self._long = [session, *self._long][:KEPT]
        return session

    def _raw_prompt(self, text: str) -> Prompt:
        if not isinstance(text, str) or not text:
            raise InvalidInput("the text to continue is empty: give at least one character")
        ids = self.bundle.tokenizer.encode(text)
        return Prompt(ids, [True] * len(ids))


_OPEN: weakref.WeakSet[EdgeModel] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread may be inside the runtime when the interpreter ends: it would be aborted there."""
    for model in list(_OPEN):
        model.close()


def _client(bundle: Bundle, settings: EdgeSettings, knowledge_base: str) -> MemoryClient | None:
    if settings.offline:
        return None
    return MemoryClient(
        settings.channel, knowledge_base, bundle.identity, bundle.manifest.embedder_id,
        deadline_s=settings.deadline_s, minimum_score=settings.minimum_score,
        payload_bytes=bundle.memory_format.payload_bytes(bundle.config.memory.reference_tokens),
    )  # fmt: skip
