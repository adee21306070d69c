"""What can go wrong on a device, drawn once. Everything derives from `memory_model.errors.Memory3Error`.

    Memory3Error
      EdgeError                    raised by the client itself
        ContextFull                the text no longer fits the decoder's cache
        ModelClosed                the model was closed
        SessionBusy                an answer of the session is under way, or another thread reads it
        SessionNotSaved            the session's file could not be written
        DecoderBroken              the decoder gave NaN: a damaged file or provider
        ProviderError              an accelerator cannot be used; the CPU still can
          TensorRtMissing          TensorRT's Python API is not installed
          GraphUnsupported         the graph has operators that this TensorRT does not know
          EngineNotBuilt           TensorRT could not parse or build the graph
          EngineMismatch           the engine's results are not the CPU's: it is thrown away
        RetrievalError             a call to the service failed: no memories for this chunk; decoding goes on without
          ServiceUnavailable       nobody answers at the address, or the connection broke
            CertificateRefused     the TLS handshake failed: expired, unknown issuer, another host's, no TLS there
            ServiceOverloaded      it answers that it has too much to do, or no room
          DeadlineExceeded         the service did not answer in time
          RequestRefused           the service answered no (unknown knowledge base, bad request)
            AccessRefused          the API key is missing or wrong, or does not permit this
          IncompatibleService      the service has another model, codec or embedder than this bundle
          ServiceFailed            the service failed while it worked on the request, or its data are damaged
          DamagedMemory            a payload's checksum or length is wrong
          RecallCancelled          the answer was ended while its memories were asked for
        PullError                  a bundle or pack could not be fetched whole; what came is kept
          DiskFull                 no room for it on this device
          PullUnderWay             another process fetches to the same place
          KnowledgeBaseChanging    the knowledge base was written to while it was being fetched
      InvalidInput                 a caller's value is wrong: an option, a message
        UnknownTemplate            the chat template is none, or cannot spell the conversation
        EmptyConversation          there is no message to answer
        UnknownRole                a message is not of system, user or assistant
      MissingFile                  no bundle, session or pack is there; the message names the command that makes it
      CorruptFile                  a file's or payload's bytes are not what they should be
      IdentityMismatch             something was written by another model, codec, format or embedder
        ModelMismatch              … by another model or tokenizer
          SessionOfAnotherModel    a saved session
        CodecMismatch              … by another codec
        FormatMismatch             … with another memory budget or format version
        EmbedderMismatch           … with another embedder

Those from InvalidInput on are defined in `memory_model.errors`, except SessionOfAnotherModel.
"""

from __future__ import annotations

from memory_model.errors import (
    CodecMismatch,
    CorruptFile,
    EmbedderMismatch,
    EmptyConversation,
    FormatMismatch,
    IdentityMismatch,
    InvalidInput,
    Memory3Error,
    MissingFile,
    ModelMismatch,
    UnknownRole,
    UnknownTemplate,
)

__all__ = [
    "AccessRefused",
    "CertificateRefused",
    "CodecMismatch",
    "ContextFull",
    "CorruptFile",
    "DamagedMemory",
    "DeadlineExceeded",
    "DecoderBroken",
    "DiskFull",
    "EdgeError",
    "EmbedderMismatch",
    "EmptyConversation",
    "EngineMismatch",
    "EngineNotBuilt",
    "FormatMismatch",
    "GraphUnsupported",
    "IdentityMismatch",
    "IncompatibleService",
    "InvalidInput",
    "KnowledgeBaseChanging",
    "Memory3Error",
    "MissingFile",
    "ModelClosed",
    "ModelMismatch",
    "ProviderError",
    "PullError",
    "PullUnderWay",
    "RecallCancelled",
    "RequestRefused",
    "RetrievalError",
    "ServiceFailed",
    "ServiceOverloaded",
    "ServiceUnavailable",
    "SessionBusy",
    "SessionNotSaved",
    "SessionOfAnotherModel",
    "TensorRtMissing",
    "UnknownRole",
    "UnknownTemplate",
]


class EdgeError(Memory3Error):
    """Root of the client's own errors."""


class ContextFull(EdgeError):
    """The text no longer fits; the message says how many tokens there are and how many fit."""


class DecoderBroken(EdgeError):
    """The decoder's logits are NaN."""


class ModelClosed(EdgeError):
    """The model was closed; open it again."""


class SessionBusy(EdgeError):
    """The session, or its answer, is in use: one answer at a time, read by one thread at a time."""


class SessionNotSaved(EdgeError):
    """The session's file could not be written: no room, no permission, no such folder. What was there stays."""


class SessionOfAnotherModel(ModelMismatch):
    """The session was saved with another model, so its key-values mean nothing to this one."""

    subject = "the session was saved with"


class ProviderError(EdgeError):
    """An accelerator cannot be used as asked; the message says what to install or do."""


class TensorRtMissing(ProviderError):
    """TensorRT's Python API is not installed or does not load."""


class GraphUnsupported(ProviderError):
    """The graph has operators that this TensorRT does not know; the message lists them."""


class EngineNotBuilt(ProviderError):
    """TensorRT could not parse or build the graph; the message is TensorRT's own."""


class EngineMismatch(ProviderError):
    """An engine computes something else than the CPU provider. It is never kept."""


class RetrievalError(EdgeError):
    """A call to the service failed. Generation catches it, reports it and goes on.

    reason: the service's stable name for it, e.g. KNOWLEDGE_BASE_NOT_FOUND; empty where it gave none.
    help: what to do, part of the message too. retry_after_s: when the service wants to be asked again; None: unsaid.
    """

    def __init__(
        self, message: str = "", *, reason: str = "", help: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{message}: {help}" if help else message)
        self.reason = reason
        self.help = help
        self.retry_after_s = retry_after_s


class ServiceUnavailable(RetrievalError):
    """Nobody answers at the address, or the connection broke."""


class ServiceOverloaded(ServiceUnavailable):
    """The service answered that it has too much to do; asking again at once would make it worse."""


class CertificateRefused(ServiceUnavailable):
    """The TLS handshake failed: a certificate is expired, of an unknown issuer or another host, or there is no TLS."""


class DeadlineExceeded(RetrievalError):
    """The service did not answer within the deadline."""


class RequestRefused(RetrievalError):
    """The service understood and said no."""


class AccessRefused(RequestRefused):
    """The API key is missing or wrong, or does not permit the request."""


class IncompatibleService(RetrievalError):
    """The service's model, codec or embedder is not this bundle's."""


class ServiceFailed(RetrievalError):
    """The service failed while it worked on the request, or found its own data damaged."""


class DamagedMemory(RetrievalError):
    """A payload arrived whose checksum or length is wrong."""


class RecallCancelled(RetrievalError):
    """Nobody waits for the memories any more: the answer was ended while they were asked for."""


class PullError(EdgeError):
    """A bundle or pack could not be fetched whole; the same command goes on where it stopped."""


class DiskFull(PullError):
    """There is no room for the bundle or pack."""


class PullUnderWay(PullError):
    """Another process fetches to the same place."""


class KnowledgeBaseChanging(PullError):
    """The knowledge base was written to again and again while it was being fetched."""
