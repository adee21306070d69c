"""What can go wrong on a device: ten classes, each with a `reason` that a program can test.

    Memory3Error                 root
      InvalidInput               a caller's value is wrong
                                 INVALID_VALUE, EMPTY_CONVERSATION, UNKNOWN_ROLE, UNKNOWN_TEMPLATE
      MissingFile                no bundle, session or pack is there; the message names the command that makes it
                                 MISSING_FILE
      CorruptFile                a file's bytes are not what they should be
                                 CORRUPT_FILE
      IdentityMismatch           written by another model, codec, format or embedder
                                 MODEL_MISMATCH, CODEC_MISMATCH, FORMAT_MISMATCH, EMBEDDER_MISMATCH
      ContextFull                the text no longer fits the decoder's cache
                                 CONTEXT_FULL
      ModelClosed                the model was closed
                                 MODEL_CLOSED
      SessionBusy                an answer of the session is being read, or another thread reads it
                                 SESSION_BUSY
      ProviderError              the execution provider cannot run the model
                                 NOT_INSTALLED, UNSUPPORTED_GRAPH, NOT_BUILT, LOAD_FAILED, OUT_OF_MEMORY, WRONG_RESULT
      StorageError               a bundle, pack, session or local knowledge base could not be stored whole
                                 NOT_FETCHED, NO_WRITER, NOT_INSTALLED, IN_USE, NOT_WRITABLE, DISK_FULL, PULL_UNDER_WAY,
                                 KNOWLEDGE_BASE_CHANGING
      RetrievalError             a call to the service failed; decoding goes on without memories
                                 without an answer (`unavailable`): UNREACHABLE, CERTIFICATE, OVERLOADED,
                                 DEADLINE_EXCEEDED, CANCELLED
                                 with one: ACCESS_REFUSED, INVALID_REQUEST, INCOMPATIBLE, SERVICE_FAILED,
                                 DAMAGED_MEMORY, or the service's own (`google.rpc.ErrorInfo.reason`),
                                 such as KNOWLEDGE_BASE_NOT_FOUND or MODEL_MISMATCH

The first four are defined in `memory3.errors`.
"""

from __future__ import annotations

from concurrent.futures import CancelledError, Future

from memory3.errors import Memory3Error

MENDABLE = frozenset(
    {
        "CERTIFICATE",
        "CERTIFICATE_UNKNOWN",
        "UNAUTHENTICATED",
        "ACCESS_REFUSED",
        "SCOPE_TOO_SMALL",
        "INCOMPATIBLE",
        "INVALID_REQUEST",
        "KNOWLEDGE_BASE_NOT_FOUND",
        "MODEL_MISMATCH",
        "CODEC_MISMATCH",
        "FORMAT_MISMATCH",
        "EMBEDDER_MISMATCH",
    }
)
"""Reasons why a recall failed that go on until somebody changes a setting, a file or the service."""


class EdgeError(Memory3Error):
    """An error of the client.

    reason: instead of the class's default. help: what to do, appended to the message.
    """

    def __init__(self, message: str = "", *, reason: str = "", help: str = "") -> None:
        super().__init__(f"{message}: {help}" if help else message)
        self.reason = reason or type(self).reason
        self.help = help


class ContextFull(EdgeError):
    """The text no longer fits; the message says how many tokens there are and how many fit."""

    reason = "CONTEXT_FULL"


class ModelClosed(EdgeError):
    """The model was closed; open it again."""

    reason = "MODEL_CLOSED"


class SessionBusy(EdgeError):
    """The session, or its answer, is in use: one answer at a time, read by one thread at a time."""

    reason = "SESSION_BUSY"


class ProviderError(EdgeError):
    """The execution provider cannot run the model, or computed something else; the message says what to do."""

    reason = "LOAD_FAILED"


class StorageError(EdgeError):
    """A bundle, pack or session could not be stored whole; what was there before stays."""

    reason = "NOT_FETCHED"


class RetrievalError(EdgeError):
    """A call to the service failed. Generation catches it, reports it in its Recalled event and goes on.

    unavailable: the service did not answer. It is not called again for a while, and a memory pack is used instead.
    retry_after_s: the service's own wish; None where it has none.
    """

    reason = "SERVICE_FAILED"

    def __init__(
        self,
        message: str = "",
        *,
        reason: str = "",
        unavailable: bool = False,
        help: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, reason=reason, help=help)
        self.unavailable = unavailable
        self.retry_after_s = retry_after_s


def described(error: Exception) -> str:
    """`REASON: message`, as events and the command line show an error; the class's name for one that is not ours."""
    reason = error.reason if isinstance(error, Memory3Error) else type(error).__name__
    return f"{reason}: {error}"


class Cancellation(Future[None]):
    """Set once, by `cancel`, which calls what `add_done_callback` was given, in its thread. Thread-safe."""

    def check(self) -> None:
        """Raise CancelledError if it was cancelled."""
        if self.cancelled():
            raise CancelledError
