"""The service's error tree and its one mapping to gRPC: status code, `google.rpc` details, a stable reason.

    ServiceError                     root; code and reason of every leaf are below
      BadRequest                     INVALID_ARGUMENT: a value of the request is wrong; `field` names it
        MalformedRequest             ... the bytes are no message of the contract, or a string is not UTF-8
        WrongVectorSize              ... the vector bytes do not fill rows of the embedder's dimension
        VectorNotFinite              ... a vector holds NaN or infinity, or is zero and has no direction
        DocumentEmpty                ... there is no text in the document
        DocumentTooLarge             ... its text is longer than the service's limit
        PayloadCorrupt               ... the bytes of a ready memory are not one
      KnowledgeBaseNotFound, DocumentNotFound, BundleFileNotFound    NOT_FOUND
      KnowledgeBaseExists            ALREADY_EXISTS
      KnowledgeBaseChanged           ABORTED: it was written to since the export began; carries RetryInfo
      Unauthenticated                UNAUTHENTICATED: no API key, or none that is known and active
      ScopeTooSmall                  PERMISSION_DENIED: the key may read or write, but not do this
      BundleNotConfigured            FAILED_PRECONDITION
      MemoriesUnwritten              FAILED_PRECONDITION: a cold start is not over, so there is no whole export
      KnowledgeBaseDamaged           DATA_LOSS: the store holds less or other than was written; the others go on
      Overloaded                     RESOURCE_EXHAUSTED: too many requests wait; carries RetryInfo
      StoreFull                      RESOURCE_EXHAUSTED: the disk is full
      DiskWatermarkReached           RESOURCE_EXHAUSTED: the disk is nearly full; writing goes on when there is room
      QuotaExceeded                  RESOURCE_EXHAUSTED: the tenant would hold more than it may
      RateExceeded                   RESOURCE_EXHAUSTED: the tenant calls more often than it may; carries RetryInfo
      NotReady                       UNAVAILABLE: the service is starting; carries RetryInfo
      ShuttingDown                   UNAVAILABLE: SIGTERM came; carries RetryInfo
      StoreUnavailable               UNAVAILABLE: the store cannot be opened or does not answer
      DeadlineExceeded               DEADLINE_EXCEEDED: the client's deadline, or ours where it sent none
      EncodingFailed                 INTERNAL: the model could not turn a reference into a memory
      DocumentRefused                the status with which the document of an Upsert was refused

The mismatches of `memory_model.errors` (model, codec, memory format, embedder) become FAILED_PRECONDITION.
Whatever is in no tree is a bug: INTERNAL with reason INTERNAL, its traceback in the log, not on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from memory_model.errors import (
    CodecMismatch,
    CorruptFile,
    EmbedderMismatch,
    FormatMismatch,
    IdentityMismatch,
    InvalidInput,
    Memory3Error,
    ModelMismatch,
)

ERROR_DOMAIN = "memory.v1"
_MESSAGE_CHARACTERS = 600
_VALUE_CHARACTERS = 200


class ServiceError(Memory3Error):
    """Root of the service's errors; `details` become the metadata of google.rpc.ErrorInfo."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"
    retry_after_s: float | None = None

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = {name: str(value) for name, value in details.items()}

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed after `retry_after_s`."""
        return self.retry_after_s is not None


class BadRequest(ServiceError):
    """A value of the request is wrong."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"

    def __init__(self, message: str, *, field: str = "", **details: object) -> None:
        super().__init__(message, **details)
        self.field = field


class MalformedRequest(BadRequest):
    """The bytes are no message of the contract, or a string in it is not UTF-8."""

    reason = "MALFORMED_REQUEST"


class WrongVectorSize(BadRequest):
    """The vector bytes do not fill rows of the embedder's dimension."""

    reason = "WRONG_VECTOR_SIZE"


class VectorNotFinite(BadRequest):
    """A vector holds NaN or infinity, or is zero."""

    reason = "VECTOR_NOT_FINITE"


class DocumentEmpty(BadRequest):
    """There is no text in the document."""

    reason = "DOCUMENT_EMPTY"


class DocumentTooLarge(BadRequest):
    """The document's text is longer than the limit."""

    reason = "DOCUMENT_TOO_LARGE"


class PayloadCorrupt(BadRequest):
    """The bytes of a ready memory are not one."""

    reason = "PAYLOAD_CORRUPT"


class KnowledgeBaseNotFound(ServiceError):
    """No knowledge base has this name."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "KNOWLEDGE_BASE_NOT_FOUND"


class DocumentNotFound(ServiceError):
    """No document has this key."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "DOCUMENT_NOT_FOUND"


class BundleFileNotFound(ServiceError):
    """The bundle's manifest names no such file."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "BUNDLE_FILE_NOT_FOUND"


class KnowledgeBaseExists(ServiceError):
    """The name is taken."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "KNOWLEDGE_BASE_EXISTS"


class KnowledgeBaseChanged(ServiceError):
    """The knowledge base is not any more as it was when its export began."""

    code = grpc.StatusCode.ABORTED
    reason = "KNOWLEDGE_BASE_CHANGED"
    retry_after_s = 1.0


class Unauthenticated(ServiceError):
    """No API key, or none that is known and active. The message is the same for all of them.

    key_id, tenant: of a key that was revoked or has ended and whose secret was right; for the audit log alone.
    """

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"

    def __init__(self, message: str, *, key_id: str = "", tenant: str = "") -> None:
        super().__init__(message)
        self.key_id, self.tenant = key_id, tenant


class ScopeTooSmall(ServiceError):
    """The key's scope on the knowledge base does not include what was asked for."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "SCOPE_TOO_SMALL"


class BundleNotConfigured(ServiceError):
    """The service was started without an edge bundle."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BUNDLE_NOT_CONFIGURED"


class MemoriesUnwritten(ServiceError):
    """Some memories of the knowledge base are not written yet."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MEMORIES_UNWRITTEN"


class KnowledgeBaseDamaged(ServiceError):
    """The store holds less or other than was written."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "KNOWLEDGE_BASE_DAMAGED"


class Overloaded(ServiceError):
    """Too many requests wait already."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"
    retry_after_s = 0.1


class StoreFull(ServiceError):
    """The disk is full; what was stored before is intact."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "STORE_FULL"
    retry_after_s = 60.0


class DiskWatermarkReached(ServiceError):
    """The disk is nearly full: nothing is written until there is room again."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "DISK_WATERMARK"
    retry_after_s = 60.0


class QuotaExceeded(ServiceError):
    """The tenant would hold more references or bytes than it may."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUOTA_EXCEEDED"


class RateExceeded(ServiceError):
    """The tenant calls more often than it may."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "RATE_EXCEEDED"

    def __init__(self, message: str, *, retry_after_s: float, **details: object) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class NotReady(ServiceError):
    """The service listens already, but its store and model are not loaded."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "NOT_READY"
    retry_after_s = 1.0


class ShuttingDown(ServiceError):
    """The service was told to stop; another replica, or this one after its restart, takes the request."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "SHUTTING_DOWN"
    retry_after_s = 1.0


class StoreUnavailable(ServiceError):
    """The store cannot be opened or does not answer."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "STORE_UNAVAILABLE"
    retry_after_s = 1.0


class DeadlineExceeded(ServiceError):
    """The request took longer than the client's deadline, or than ours where it sent none."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class EncodingFailed(ServiceError):
    """The model could not turn a reference into a memory."""

    reason = "ENCODING_FAILED"


class DocumentRefused(ServiceError):
    """The one document of an Upsert was refused; the error is that of its DocumentFailure."""

    reason = "DOCUMENT_REFUSED"

    def __init__(self, status: status_pb2.Status, reason: str, metadata: Mapping[str, str]) -> None:
        super().__init__(status.message, **metadata)
        self.status, self.reason = status, reason
        self.code = next(code for code in grpc.StatusCode if code.value[0] == status.code)


_MISMATCH_REASONS: dict[type[IdentityMismatch], str] = {
    ModelMismatch: "MODEL_MISMATCH",
    CodecMismatch: "CODEC_MISMATCH",
    FormatMismatch: "FORMAT_MISMATCH",
    EmbedderMismatch: "EMBEDDER_MISMATCH",
}


def described(error: BaseException) -> tuple[grpc.StatusCode, str, str, dict[str, str]]:
    """(status code, reason, message, metadata) of any error; what is not ours tells nothing of itself."""
    if isinstance(error, ServiceError):
        field = {"field": error.field} if isinstance(error, BadRequest) and error.field else {}
        return error.code, error.reason, str(error), {**error.details, **field}
    if isinstance(error, IdentityMismatch):
        reason = _MISMATCH_REASONS.get(type(error), "IDENTITY_MISMATCH")
        metadata = {"found": error.found, "expected": error.expected}
        return grpc.StatusCode.FAILED_PRECONDITION, reason, str(error), metadata
    if isinstance(error, InvalidInput):
        return grpc.StatusCode.INVALID_ARGUMENT, BadRequest.reason, str(error), {}
    if isinstance(error, CorruptFile):
        return grpc.StatusCode.DATA_LOSS, "CORRUPT_FILE", str(error), {}
    return (
        grpc.StatusCode.INTERNAL,
        ServiceError.reason,
        "internal error; the service's log has the cause",
        {},
    )


def to_status(error: BaseException) -> status_pb2.Status:
    """The error as google.rpc.Status with ErrorInfo, and BadRequest or RetryInfo where they apply."""
    if isinstance(error, DocumentRefused):
        return error.status
    code, reason, message, metadata = described(error)
    # Status and details travel as headers, of which a client takes 8 KB.
    message = message[:_MESSAGE_CHARACTERS]
    metadata = {name: value[:_VALUE_CHARACTERS] for name, value in metadata.items()}
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN, metadata=metadata)
    ]
    if isinstance(error, BadRequest) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, ServiceError) and error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code.value[0], message=message, details=packed)
