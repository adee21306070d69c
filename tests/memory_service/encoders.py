"""Encoders that wait until they are let go, or are of an earlier or a later model."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from memory3.errors import ModelMismatch
from memory_service.encoder import EncodedReferences
from testing.encoders import HashEncoder, identity_of


class Gated(HashEncoder):
    """Writes memories only when it was let go, once or for good, or the service stops; refuses what says `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.once = threading.Semaphore(0)
        self.stopping = threading.Event().is_set

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        while not (self.let_go.wait(0.01) or self.once.acquire(blocking=False) or self.stopping()):
            pass
        if any("broken" in text for text in references):
            raise RuntimeError("a bug")
        return super().encode(references)


OLD, NEW = (identity_of(name).model_id for name in ("old", "new"))


class Later(HashEncoder):
    """Model `new`, which translates the payloads of `old`; writes when it is let go or the service stops."""

    def __init__(self) -> None:
        super().__init__("new")
        earlier = replace(identity_of("old"), embedder_id=self.description.identity.embedder_id)
        self.description = replace(self.description, earlier=(earlier,))
        self.asked, self.let_go = threading.Event(), threading.Event()
        self.stopping = threading.Event().is_set
        self.wrote: list[str] = []

    def own(self, payload: bytes | memoryview) -> bytes | memoryview:
        if self.is_own(payload):
            return payload
        if bytes(payload[:16]) != bytes.fromhex(OLD)[:16]:
            raise ModelMismatch("another", NEW, "start the service with that model")
        return bytes.fromhex(NEW)[:16] + b"translated" + bytes(payload[16:])

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        self.asked.set()
        while not (self.let_go.wait(0.01) or self.stopping()):
            pass
        if any("broken" in text for text in references):
            raise RuntimeError("a bug")
        self.wrote += references
        return super().encode(references)


class Earlier(HashEncoder):
    """Model `old`, with the embedder of `new`."""

    def __init__(self) -> None:
        super().__init__("old")
        identity = replace(self.description.identity, embedder_id=identity_of("new").embedder_id)
        self.description = replace(self.description, identity=identity)

    def own(self, payload: bytes | memoryview) -> bytes | memoryview:
        if not self.is_own(payload):
            raise ModelMismatch("another", OLD, "start the service with that model")
        return payload
