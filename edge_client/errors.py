"""What can go wrong on a device, drawn once. Everything derives from `memory_model.errors.Memory3Error`.

    Memory3Error
      EdgeError                    raised by the client itself
        ContextFull                the text no longer fits the decoder's cache
        DecoderBroken              the decoder gave NaN: a damaged file or provider
        RetrievalError             no memories for this chunk; decoding goes on without
          ServiceUnavailable       nobody answers at the address
          DeadlineExceeded         the service did not answer in time
          RequestRefused           the service answered no (unknown knowledge base, bad request, no permission)
          IncompatibleService      the service has another model, codec or embedder than this bundle
          DamagedMemory            a payload's checksum or length is wrong

Errors of files and identities (MissingFile, CorruptFile, ModelMismatch, …) come from `memory_model.errors`.
"""

from __future__ import annotations

from memory_model.errors import Memory3Error


class EdgeError(Memory3Error):
    """Root of the client's own errors."""


class ContextFull(EdgeError):
    """The text no longer fits; the message says how many tokens there are and how many fit."""


class DecoderBroken(EdgeError):
    """The decoder's logits are NaN."""


class RetrievalError(EdgeError):
    """No memories could be had for a chunk. Generation catches it, reports it and goes on."""


class ServiceUnavailable(RetrievalError):
    """Nobody answers at the address, or the connection broke."""


class DeadlineExceeded(RetrievalError):
    """The service did not answer within the deadline."""


class RequestRefused(RetrievalError):
    """The service understood and said no."""


class IncompatibleService(RetrievalError):
    """The service's model, codec or embedder is not this bundle's."""


class DamagedMemory(RetrievalError):
    """A payload arrived whose checksum or length is wrong."""
