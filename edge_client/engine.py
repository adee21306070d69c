"""What all conversations of a model share: weights, recalling, and the answers that are under way."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from edge_client.cancellation import Cancellation
from edge_client.decoder.batch import Decoder
from edge_client.decoder.sequence import Sequence
from edge_client.errors import ContextFull, ModelClosed
from edge_client.generate.answer import Answer
from edge_client.generate.options import Sampling
from edge_client.recall.worker import Recalling, RecallPolicy, RecallWorker
from edge_client.stream import AnswerStream
from memory_model.bundle import Bundle
from memory_model.chat import Prompt
from memory_model.errors import CorruptFile


class Engine:
    """Begins answers and ends them all when it is closed. Thread-safe.

    recaller: None answers without memories; otherwise one worker thread recalls for all answers.
    """

    def __init__(
        self, bundle: Bundle, decoder: Decoder, recaller: Recalling | None, policy: RecallPolicy
    ) -> None:
        if decoder.config != bundle.config:
            raise CorruptFile(
                "decoder.onnx has another shape than the manifest says: export the bundle again"
            )
        self.bundle, self.decoder, self.policy = bundle, decoder, policy
        self.closed = False
        self._worker = RecallWorker(recaller, policy=policy) if recaller is not None else None
        # Before there are threads: a cached property is made twice if two ask at once.
        _ = bundle.chat
        self._under_way: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        """Tokens of text that fit into a conversation, answers included."""
        return self.decoder.room

    def text(self) -> Sequence:
        """The text of one more conversation."""
        self.check_open()
        return self.decoder.sequence(self)

    def check(self, prompt: Prompt, options: Mapping[str, Any]) -> Sampling:
        """Raise InvalidInput for wrong options and ContextFull for a prompt after which not one token fits."""
        self.check_open()
        sampling = Sampling.of(options)
        sampling.check_vocabulary(self.bundle.config.vocabulary)
        if len(prompt.ids) >= self.room:
            raise ContextFull(
                f"the prompt has {len(prompt.ids)} tokens, {self.room - 1} fit: shorten the conversation, or open "
                "the model with a longer context"
            )
        return sampling

    def begin(
        self, text: Sequence, prompt: Prompt, sampling: Sampling, *, memory: bool, policy: RecallPolicy,
        done: Callable[[Answer], None],
    ) -> AnswerStream:  # fmt: skip
        """An answer to a checked prompt; nothing is computed before its first event is asked for."""
        cancellation = Cancellation()
        worker = self._worker if memory and policy.mode.value != "off" else None
        answer = Answer(text, prompt, sampling, self.bundle.tokenizer, worker, policy, cancellation)
        stream = AnswerStream(answer, cancellation, done)
        with self._lock:
            self.check_open()
            self._under_way.add(stream)
        return stream

    def check_open(self) -> None:
        """Raise ModelClosed after `close`."""
        if self.closed:
            raise ModelClosed("the model was closed: open it again with EdgeModel.open")

    def close(self) -> None:
        """Cancel every answer, wait for the steps that are under way, end the worker. Idempotent."""
        with self._lock:
            self.closed = True
            streams = list(self._under_way)
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.wait_for_step()
        if self._worker is not None:
            self._worker.close()
