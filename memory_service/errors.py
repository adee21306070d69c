"""The service's error tree and its one mapping to gRPC: status code, `google.rpc` details, a stable reason.

The reason is the class's name in capitals, such as STORE_FULL; clients depend on it.

Retryable errors carry RetryInfo: the same request may succeed after `retry_after_s`. All others are final.
The mismatches of `memory3.errors` (model, codec, memory format, embedder) become FAILED_PRECONDITION.
What is in no tree is a bug: INTERNAL with reason INTERNAL, its traceback in the log, not on the wire.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from memory3.errors import CorruptFile, IdentityMismatch, InvalidInput, Memory3Error

ERROR_DOMAIN = "memory.v1"
_MESSAGE_CHARACTERS = 600
_VALUE_CHARACTERS = 200


class ServiceError(Memory3Error):
    """Root of the service's errors; `details` become the metadata of google.rpc.ErrorInfo."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"
    retry_after_s: float | None = None

    def __init_subclass__(
        cls, code: grpc.StatusCode | None = None, retry_after_s: float | None = None, reason: str = ""
    ) -> None:
        """code: that of the parent where it is absent. reason: the class's name where it is empty."""
        super().__init_subclass__()
        cls.code, cls.reason, cls.retry_after_s = code or cls.code, reason or cls.reason, retry_after_s

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = {name: str(value) for name, value in details.items()}

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.retry_after_s is not None


class BadRequest(ServiceError, code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_ARGUMENT"):
    """A value of the request is wrong."""

    def __init__(self, message: str, *, field: str = "", **details: object) -> None:
        super().__init__(message, **details)
        self.field = field


class MalformedRequest(BadRequest):
    """There is no message, its bytes are none of the contract, or a string in it is not UTF-8."""


class WrongVectorSize(BadRequest):
    """The vector bytes do not fill rows of the embedder's dimension."""


class VectorNotFinite(BadRequest):
    """A vector holds NaN or infinity, or is zero."""


class DocumentEmpty(BadRequest):
    """There is no text in the document."""


class DocumentTooLarge(BadRequest):
    """The document's text is longer than the limit."""


class PayloadCorrupt(BadRequest):
    """The bytes of a ready memory are not one."""


class KnowledgeBaseNotFound(ServiceError, code=grpc.StatusCode.NOT_FOUND):
    """No knowledge base has this name."""


class DocumentNotFound(ServiceError, code=grpc.StatusCode.NOT_FOUND):
    """No document has this key."""


class BundleFileNotFound(ServiceError, code=grpc.StatusCode.NOT_FOUND):
    """The bundle's manifest names no such file."""


class KnowledgeBaseExists(ServiceError, code=grpc.StatusCode.ALREADY_EXISTS):
    """The name is taken."""


class KnowledgeBaseChanged(ServiceError, code=grpc.StatusCode.ABORTED, retry_after_s=1.0):
    """The knowledge base was written to since its export began, or a document replaced since its first page."""


class Unauthenticated(ServiceError, code=grpc.StatusCode.UNAUTHENTICATED):
    """No API key, or none that is known and active. The message is the same for all of them."""


class CertificateUnknown(ServiceError, code=grpc.StatusCode.PERMISSION_DENIED):
    """The client certificate is valid, and the key file grants its identity nothing."""


class ScopeTooSmall(ServiceError, code=grpc.StatusCode.PERMISSION_DENIED):
    """The caller's scope on the knowledge base does not include this call."""


class BundleNotConfigured(ServiceError, code=grpc.StatusCode.FAILED_PRECONDITION):
    """The service was started without an edge bundle."""


class MemoriesUnwritten(ServiceError, code=grpc.StatusCode.FAILED_PRECONDITION):
    """Some memories of the knowledge base are not written yet."""


class KnowledgeBaseDamaged(ServiceError, code=grpc.StatusCode.DATA_LOSS):
    """The store holds less or other than was written."""


class QuotaExceeded(ServiceError, code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """The tenant would store more references or bytes than it may."""


class Overloaded(ServiceError, code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_s=0.1):
    """Too many requests wait already."""


class RateExceeded(ServiceError, code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """The tenant calls more often than it may."""

    def __init__(self, message: str, *, retry_after_s: float, **details: object) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class StoreFull(ServiceError, code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_s=60.0):
    """The disk is full; what was stored before is intact."""


class ShuttingDown(ServiceError, code=grpc.StatusCode.UNAVAILABLE, retry_after_s=1.0):
    """The service is stopping; another replica, or this one after its restart, takes the request."""


class StoreUnavailable(ServiceError, code=grpc.StatusCode.UNAVAILABLE, retry_after_s=1.0):
    """The store cannot be opened or does not answer."""


class DeadlineExceeded(ServiceError, code=grpc.StatusCode.DEADLINE_EXCEEDED):
    """The request took longer than the client's deadline, or than ours where it sent none."""


class EncodingFailed(ServiceError):
    """The model could not turn a reference into a memory."""


def of_the_machine(error: BaseException) -> BaseException:
    """An error of the operating system as StoreUnavailable: more descriptors, space or rights mend it; others as is."""
    if isinstance(error, OSError) and not isinstance(error, (TimeoutError, ConnectionError)) and error.errno:
        return StoreUnavailable(f"the machine refused what the service needs: {error.strerror}")
    return error


def described(error: BaseException) -> tuple[grpc.StatusCode, str, str, dict[str, str]]:
    """(status code, reason, message, metadata) of any error; of a bug nothing but that it is one."""
    error = of_the_machine(error)
    if isinstance(error, ServiceError):
        field = {"field": error.field} if isinstance(error, BadRequest) and error.field else {}
        return error.code, error.reason, str(error), {**error.details, **field}
    if isinstance(error, IdentityMismatch):
        metadata = {"found": error.found, "expected": error.expected}
        return grpc.StatusCode.FAILED_PRECONDITION, error.reason, str(error), metadata
    if isinstance(error, InvalidInput):
        return grpc.StatusCode.INVALID_ARGUMENT, BadRequest.reason, str(error), {}
    if isinstance(error, CorruptFile):
        return grpc.StatusCode.DATA_LOSS, error.reason, str(error), {}
    message = "internal error; the service's log has the cause"
    return grpc.StatusCode.INTERNAL, ServiceError.reason, message, {}


def retryable(error: BaseException) -> bool:
    """Whether what failed with this error may succeed later as it is."""
    error = of_the_machine(error)
    return isinstance(error, ServiceError) and error.retryable


def to_status(error: BaseException) -> status_pb2.Status:
    """The error as google.rpc.Status with ErrorInfo, and BadRequest or RetryInfo where they apply."""
    error = of_the_machine(error)
    code, reason, message, metadata = described(error)
    # Status and details travel as headers, of which a client takes 8 KB.
    message = message[:_MESSAGE_CHARACTERS]
    metadata = {name: value[:_VALUE_CHARACTERS] for name, value in metadata.items()}
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN, metadata=metadata)]
    if isinstance(error, BadRequest) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, ServiceError) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(retry)
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code.value[0], message=message, details=packed)
