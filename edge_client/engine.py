"""`Engine`: what the sessions of one model share, from the opened bundle to the threads that recall and remember."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import execution_providers
from edge_client.decoder.scheduler import lower_priority
from edge_client.decoder.sequence import CachedSequence
from edge_client.errors import Cancellation, ModelClosed, RetrievalError
from edge_client.local.folder import LocalKnowledgeBases
from edge_client.local.writer import MemoryWriter
from edge_client.recall.cache import MemoryCache
from edge_client.recall.embedding import QueryEmbedder
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import Recaller
from edge_client.recall.worker import RecallWorker
from edge_client.retrieval import names_of
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerStream
from edge_client.wire.client import MemoryClient
from memory3.errors import CorruptFile, InvalidInput
from memory3.files.bundle import Bundle, Manifest

log = logging.getLogger("edge_client.local")
loading = logging.getLogger("edge_client.loading")
REMEMBER_AT = 0.75
"""Share of the context at which the oldest turns become memories."""


class Engine:
    """Weights, caches, recall and this device's knowledge bases, shared by all sessions of a model. Thread-safe.

    policy: when sessions recall, unless they name another. mark: tokens of the context at which the oldest turns become
    memories. drafts: whether tokens are run before they are chosen. worker: recalls for all answers. background: one
    thread that writes memories, at a low priority. closing: cancelled by `close`, for what runs in the background.
    """

    def __init__(
        self,
        bundle: Bundle,
        decoder: BatchingDecoder,
        recaller: Recaller,
        settings: EdgeSettings,
        local: LocalKnowledgeBases | None = None,
        first: Engine | None = None,
    ) -> None:
        """local: None opens those that the settings name. first: the engine whose weights these are, if another's.

        Raises CorruptFile for a decoder of another shape.
        """
        if decoder.config != bundle.config:
            raise CorruptFile("decoder.onnx has another shape than the manifest says: export the bundle again")
        self.bundle, self.decoder, self.recaller, self.settings = bundle, decoder, recaller, settings
        self.policy = settings.recall_policy
        self.mark = int(REMEMBER_AT * decoder.context)
        self.drafts = settings.speculation and decoder.backend.device == "cpu"  # measured there alone
        self._local = _local(bundle, settings) if local is None else local
        self.closed = False
        self.worker = RecallWorker(recaller)
        self.background = ThreadPoolExecutor(1, "memory3-remember", initializer=lower_priority)
        self.closing = Cancellation()
        # Before there are threads: a cached property is made twice if two read it at once.
        _ = bundle.chat
        self._streams: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._first = first
        self._writer: MemoryWriter | None = None
        self._making_writer = threading.Lock()

    @classmethod
    def open(cls, settings: EdgeSettings) -> Engine:
        """Load what the settings name; the service is not called.

        Raises MissingFile, CorruptFile and IdentityMismatch for the bundle and the knowledge bases of this device, and
        ProviderError.
        """
        loading.info("checking %s", settings.bundle)
        bundle = Bundle.open(settings.bundle)
        if settings.minimum_score is None:
            settings = settings.model_copy(update={"minimum_score": bundle.manifest.minimum_score})
        local = _local(bundle, settings)  # refused before weights are loaded
        for name, model in local.elsewhere.items():
            log.warning(
                "knowledge base %r of model %s is not read: `edge-client remember --anew --kb %s` writes it for this",
                name,
                model,
                name,
            )
        loading.info("loading the decoder")
        decoder = BatchingDecoder.open(
            bundle,
            threads=settings.threads,
            provider=settings.provider,
            context=settings.context,
            parallel=settings.parallel,
            model=settings.model,
        )
        loading.info("loading the embedder")
        runs_it = execution_providers(decoder.backend.provider)
        embedder = QueryEmbedder(bundle.embedder(threads=settings.embedder_threads, execution_providers=runs_it))
        cache = MemoryCache(int(settings.memory_cache_mb * 2**20))
        engine = cls._reading(bundle, decoder, embedder, cache, local, settings)
        engine.recaller.prepare()
        return engine

    def with_knowledge_base(self, name: str) -> Engine:
        """The same weights, embedder and cached memories with another knowledge base of the service, or several."""
        return self._with({"knowledge_base": name})

    def without_service(self) -> Engine:
        """The same weights, embedder and memories of this device, and no service that is asked anything."""
        return self._with({"offline": True})

    def _with(self, changed: dict[str, object]) -> Engine:
        settings, recaller = self.settings.model_copy(update=changed), self.recaller
        first = self._first or self
        return self._reading(self.bundle, self.decoder, recaller.queries, recaller.cache, self.local, settings, first)

    @classmethod
    def _reading(
        cls,
        bundle: Bundle,
        decoder: BatchingDecoder,
        embedder: QueryEmbedder,
        cache: MemoryCache,
        local: LocalKnowledgeBases,
        settings: EdgeSettings,
        first: Engine | None = None,
    ) -> Engine:
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
                own_names=lambda: local.names,
            )
        recaller = Recaller(
            embedder,
            client,
            decoder.backend.reading_format(bundle.memory_format),
            sends_text=settings.send_text,
            ranking=bundle.manifest.ranking,
            local=[local],
            stand_ins=lambda: local.stand_ins(settings.knowledge_base),
            cache=cache,
        )
        return cls(bundle, decoder, recaller, settings, local, first)

    def require_knowledge_bases(self, names: str) -> frozenset[str]:
        """Raise InvalidInput where neither this device nor the service has one of these ("atlas,firm").

        Returns the names of all that there are; none where the service is not called or does not answer.
        """
        return _known_knowledge_bases(names, None if self.recaller.closed() else self.recaller.client, self.local)

    @property
    def local(self) -> LocalKnowledgeBases:
        """The knowledge bases of this device; raises ModelClosed."""
        self.check_open()
        return self._local

    @property
    def writer(self) -> MemoryWriter:
        """Made at the first need, once. Raises StorageError (NO_WRITER), CorruptFile, ModelClosed."""
        self.check_open()
        if self._first is not None:
            return self._first.writer
        with self._making_writer:
            if self._writer is None:
                runs_it = execution_providers(self.decoder.backend.provider)
                embedder = self.recaller.embedder
                self._writer = MemoryWriter(self.bundle, runs_it, embedder=embedder, decoder=self.decoder)
            return self._writer

    def sequence(self, source: object = None) -> CachedSequence:
        """The key-values of one more conversation; raises ModelClosed. source: of its memories, if it has its own."""
        self.check_open()
        return self.decoder.sequence(source or self.recaller)

    def policy_with(self, memory: RecallMode | str | None, policy: RecallPolicy | None = None) -> RecallPolicy:
        """The policy, by default the engine's, with another mode; raises InvalidInput for one that does not exist."""
        policy = policy or self.policy
        try:
            return policy if memory is None else replace(policy, mode=RecallMode(memory))
        except ValueError:
            modes = ", ".join(mode.value for mode in RecallMode)
            raise InvalidInput(f"memory must be one of {modes}, not {memory!r}") from None

    def check_open(self) -> None:
        """Raise ModelClosed after `close`."""
        if self.closed:
            raise ModelClosed("the model was closed: open it again with EdgeModel.open")

    def register(self, stream: AnswerStream) -> None:
        """Let `close` end this answer; raises ModelClosed."""
        with self._lock:
            self.check_open()
            self._streams.add(stream)

    def close(self) -> None:
        """End the answers that are under way, then the background's work and the connection. Idempotent."""
        with self._lock:
            self.closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.wait_for_step()
        self.closing.cancel()
        self.background.shutdown(cancel_futures=True)
        self.worker.close()
        self.recaller.close()


def check_names(settings: EdgeSettings, *, knowledge_bases: str = "", document: str = "") -> None:
    """Raise InvalidInput for names that `require_knowledge_bases` or a question about a document would refuse later.

    It needs the manifest alone, so it takes no time, other than opening a model. Empty names are not checked.
    """
    if not (knowledge_bases or document):
        return
    bundle = Bundle(settings.bundle, Manifest.read(settings.bundle))
    with contextlib.ExitStack() as opened:
        local = opened.enter_context(contextlib.closing(_local(bundle, settings)))
        if document:
            local.document(document)
        if knowledge_bases and not settings.offline:
            ids = bundle.identity, bundle.manifest.embedder_id
            client = MemoryClient(settings.channel, knowledge_bases, *ids, deadline_s=settings.deadline_s)
            _known_knowledge_bases(knowledge_bases, opened.enter_context(contextlib.closing(client)), local)


def _known_knowledge_bases(names: str, client: MemoryClient | None, local: LocalKnowledgeBases) -> frozenset[str]:
    """See `Engine.require_knowledge_bases`. client: None where the service is not to be called."""
    requested = names_of(names)
    if client is None:
        return frozenset()
    try:
        known = frozenset({*(base.name for base in client.knowledge_bases()), *local.documents()})
    except RetrievalError:
        return frozenset()
    if unknown := [name for name in requested if name not in known]:
        raise InvalidInput(
            f"there is no knowledge base {unknown[0]!r}; there are: {', '.join(sorted(known)) or 'none'}"
        )
    return known


def _local(bundle: Bundle, settings: EdgeSettings) -> LocalKnowledgeBases:
    return LocalKnowledgeBases(settings.store, bundle, minimum_score=settings.minimum_score)
