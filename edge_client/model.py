"""`EdgeModel`: the SDK. A bundle is opened once; conversations and questions share its weights and its recalling."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edge_client.decoder.batch import Decoder
from edge_client.decoder.sequence import Sequence as Text
from edge_client.engine import Engine
from edge_client.recall.cache import MemoryCache
from edge_client.recall.offline import open_pack
from edge_client.recall.pack import MemoryPack
from edge_client.recall.recaller import Recaller
from edge_client.recall.worker import Recalling, RecallMode, RecallPolicy
from edge_client.session import ChatSession
from edge_client.settings import EdgeSettings
from edge_client.wire.client import MemoryClient
from memory_model.bundle import Bundle
from memory_model.chat import Message, Prompt
from memory_model.errors import InvalidInput

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_client.generate.options import SamplingOptions
    from edge_client.stream import AnswerStream


class EdgeModel:
    """Answers with memories from a service, or without.

        with EdgeModel.open("build/bundle", service="127.0.0.1:7430") as model:
            for event in model.generate("What is the capital of Norway?"):
                ...

    Threads: everything here may be called from any thread. Every answer and every session has caches of its
    own over the same weights, so answers run at the same time; their steps share the processor. One background
    thread recalls for all of them. Do not fork a process with an open model: open it in the child.

    Closing cancels the answers that are under way: their iterations end with Finished, reason "cancelled",
    after the step that they are in; then the connection is closed. After that everything raises ModelClosed.
    """

    def __init__(
        self,
        bundle: Bundle,
        decoder: Decoder,
        recaller: Recalling | None,
        policy: RecallPolicy | None = None,
    ) -> None:
        self.bundle = bundle
        self.decoder, self.graph = decoder, decoder.graph
        self.recaller = recaller
        self.policy = policy or RecallPolicy()
        self._settings: EdgeSettings | None = None  # those of `open`
        self._pack: MemoryPack | None = None  # of their knowledge base
        self._engine = Engine(bundle, decoder, recaller, self.policy)
        # The caches of the last question: one that goes on from it need not be read again.
        self._idle: Text | None = self._engine.text()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, bundle: str | Path | None = None, service: str | None = None, **settings: Any) -> EdgeModel:
        """Open a bundle and name a service (neither is needed if the environment says them).

        settings: fields of EdgeSettings. The service is not called before the first question. Raises
        MissingFile, CorruptFile and IdentityMismatch for the bundle and the memory pack, InvalidInput for a pack of
        another knowledge base.
        """
        given = {"bundle": bundle, "service": service, **settings}
        chosen = EdgeSettings(**{k: v for k, v in given.items() if v is not None})
        opened = Bundle.open(chosen.bundle)
        decoder = Decoder.open(opened, threads=chosen.threads, provider=chosen.provider)
        pack = open_pack(chosen, opened)
        recaller = Recaller(
            opened.embedder(threads=chosen.embedder_threads), _client(opened, chosen, chosen.knowledge_base),
            opened.memory_format, pack=pack,
            cache=MemoryCache.of(int(chosen.memory_cache_mb * 2**20)), deadline_s=chosen.deadline_s,
            hedge_after_s=chosen.recall_policy.hedge_after_s,
        )  # fmt: skip
        model = cls(opened, decoder, recaller, chosen.recall_policy)
        model._settings, model._pack = chosen, pack
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
            pack=self._pack if name == settings.knowledge_base else None, deadline_s=settings.deadline_s,
            hedge_after_s=settings.recall_policy.hedge_after_s,
        )  # fmt: skip
        model = EdgeModel(self.bundle, self.decoder, recaller, self.policy)
        model._settings, model._pack = settings, self._pack
        return model

    def generate(
        self, messages: str | Sequence[Message], *, memory: bool = True, **options: Unpack[SamplingOptions]
    ) -> AnswerStream:
        """Answer a question (str) or a conversation, event by event: Recalled, Token, and Finished at the end.

        Nothing is remembered between calls but key-values: what a conversation has in common with the one that
        was answered last is not read again. memory: False answers without recalling. options: see `Sampling`. A
        service that is down, slow or wrong never raises here: its Recalled event carries the error and the
        answer goes on. Arguments are checked at once, before the first event is asked for. Raises InvalidInput
        (EmptyConversation, UnknownRole, UnknownTemplate), ContextFull, ModelClosed.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self._begin(self.bundle.chat.prompt(messages), self.policy, memory, options)

    def complete(
        self, text: str, *, memory: bool = True, recall: RecallMode | str | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AnswerStream:  # fmt: skip
        """Go on with a text as it is, without the chat template; special tokens that it spells are meant.

        recall: instead of the model's mode. Otherwise as `generate`.
        """
        return self._begin(self._raw_prompt(text), self._policy_with(recall, None), memory, options)

    def check(self, messages: Sequence[Message], **options: Unpack[SamplingOptions]) -> int:
        """Tokens of the prompt of `generate`; raises what it would raise, and computes nothing."""
        prompt = self.bundle.chat.prompt(messages)
        self._engine.check(prompt, options)
        return len(prompt.ids)

    def check_text(self, text: str, **options: Unpack[SamplingOptions]) -> int:
        """Tokens of the prompt of `complete`; raises what it would raise, and computes nothing."""
        prompt = self._raw_prompt(text)
        self._engine.check(prompt, options)
        return len(prompt.ids)

    def _raw_prompt(self, text: str) -> Prompt:
        if not isinstance(text, str) or not text:
            raise InvalidInput("the text to go on with is empty: give at least one character")
        ids = self.bundle.tokenizer.encode(text)
        return Prompt(ids, [True] * len(ids))

    def _begin(
        self, prompt: Prompt, policy: RecallPolicy, memory: bool, options: SamplingOptions
    ) -> AnswerStream:
        sampling = self._engine.check(prompt, options)
        with self._lock:
            text, self._idle = self._idle, None
        text = text or self._engine.text()
        return self._engine.begin(
            text, prompt, sampling, memory=memory, policy=policy, done=lambda _: self._keep(text)
        )

    def session(
        self, system: str | None = None, *, messages: Sequence[Message] = (), recall: RecallMode | str | None = None,
        lead_tokens: int | None = None,
    ) -> ChatSession:  # fmt: skip
        """A conversation that keeps its caches.

        system: what the model is told before anything is said. messages: what was said before, if anything.
        recall, lead_tokens: instead of the model's settings. Raises InvalidInput, ModelClosed.
        """
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        return ChatSession(self._engine, messages, self._policy_with(recall, lead_tokens))

    def load_session(self, path: str | Path, *, recall: RecallMode | str | None = None) -> ChatSession:
        """A conversation that `ChatSession.save` wrote, on this or another device with the same model.

        Raises MissingFile, CorruptFile, ModelMismatch, CodecMismatch, ContextFull, ModelClosed.
        """
        return ChatSession.load(self._engine, path, self._policy_with(recall, None))

    def close(self) -> None:
        """End the answers that are under way, then the connection to the service. Idempotent.

        The caches go now; weights and memories once nobody holds the model or a session of it any more.
        """
        self._engine.close()
        with self._lock:
            self._idle = None
        if isinstance(self.recaller, Recaller):
            self.recaller.close()

    def __enter__(self) -> EdgeModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _policy_with(self, recall: RecallMode | str | None, lead_tokens: int | None) -> RecallPolicy:
        try:
            mode = self.policy.mode if recall is None else RecallMode(recall)
        except ValueError:
            modes = ", ".join(mode.value for mode in RecallMode)
            raise InvalidInput(f"recall must be one of {modes}, not {recall!r}") from None
        lead_tokens = self.policy.lead_tokens if lead_tokens is None else lead_tokens
        return replace(self.policy, mode=mode, lead_tokens=lead_tokens)

    def _keep(self, text: Text) -> None:
        with self._lock:
            if not self._engine.closed:
                self._idle = text


def _client(bundle: Bundle, settings: EdgeSettings, knowledge_base: str) -> MemoryClient | None:
    if settings.offline:
        return None
    return MemoryClient(
        settings.channel, knowledge_base, bundle.identity, bundle.manifest.embedder_id,
        deadline_s=settings.deadline_s, minimum_score=settings.minimum_score,
        payload_bytes=bundle.memory_format.payload_bytes(bundle.config.memory.reference_tokens),
    )  # fmt: skip
