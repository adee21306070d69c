"""What every call of our services gets: a deadline, errors with details, and a log line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from memory_model.errors import Memory3Error
from memory_service.api.call_record import record
from memory_service.errors import DeadlineExceeded, MalformedRequest, described, to_status
from memory_service.ops.logs import logger, tells_debug

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True)
class Undecodable:
    """Stands for a request that is no message of the contract."""

    method: str


class Calls:
    """Wraps the handlers of `memory.v1`; health and reflection stay as they are."""

    def __init__(self, default_deadline_s: float, stream_idle_s: float) -> None:
        """`default_deadline_s`: for unary calls without one; `stream_idle_s`: for a client to take a message."""
        self._default_deadline_s = default_deadline_s
        self._stream_idle_s = stream_idle_s
        self._under_way = 0
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    def name_what_is_cut(self) -> None:
        """From here on a call that is cancelled is one that the end of the grace cut off, and is logged by name."""
        self._stopping = True

    def note(self, more: int) -> None:
        """One call more, or one less."""
        self._under_way += more
        if self._under_way:
            self._idle.clear()
        else:
            self._idle.set()

    def note_cancelled(self, method: str) -> None:
        """A call was cancelled: by the end of the grace, or by a client who left, which is his right and no error."""
        if self._stopping:
            logger().warning("call_cut", method=method)
        else:
            logger().info("client_left", method=method)

    async def wait_until_idle(self) -> None:
        """Returns when no call of `memory.v1` is under way."""
        await self._idle.wait()

    def wrapped(self, method: str, handler: Any) -> grpc.RpcMethodHandler:
        """A handler that does all of this; those of streams are coroutines then."""
        decode = _lenient(handler.request_deserializer, method)
        encode = _serializer(handler.response_serializer)
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(method, handler.stream_stream), decode, encode
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(method, handler.unary_stream), decode, encode
            )
        return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary), decode, encode)

    def _unary(self, method: str, behaviour: Any) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            with _UnderWay(self, method):
                return await answered(request, context)

        async def answered(request: Any, context: grpc.aio.ServicerContext) -> Any:
            started = time.perf_counter()
            try:
                _require_decoded(request)
                remaining = context.time_remaining()
                with _Deadline(self._default_deadline_s if remaining is None else remaining):
                    response = await behaviour(request, context)
            except Exception as error:
                await abort_with(method, error, started, context)
            if tells_debug():
                logger().debug("call", method=method, ms=_ms_since(started))
            return response

        return call

    def _streaming(self, method: str, behaviour: Any) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> None:
            with _UnderWay(self, method):
                await answered(request, context)

        async def answered(request: Any, context: grpc.aio.ServicerContext) -> None:
            started = time.perf_counter()
            responses: AsyncGenerator[Any, None] | None = None
            try:
                _require_decoded(request)
                responses = behaviour(request, context)
                async for response in responses:
                    await self._written(response, context)
            except Exception as error:
                await abort_with(method, error, started, context)
            finally:
                if responses is not None:
                    await responses.aclose()
            logger().info("stream", method=method, ms=_ms_since(started))

        return call

    async def _written(self, response: Any, context: grpc.aio.ServicerContext) -> None:
        """Raises TimeoutError for a client that takes nothing, CancelledError for one that is gone."""
        try:
            # A client that takes nothing must not keep a stream for ever.
            await asyncio.wait_for(context.write(response), self._stream_idle_s)
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            # Whoever left is often found out by writing to him, before grpc cancels the call.
            raise asyncio.CancelledError from error


class _UnderWay:
    """While a call is answered. A class, because a generator of contextlib costs three times as much."""

    __slots__ = ("_calls", "_method")

    def __init__(self, calls: Calls, method: str) -> None:
        self._calls = calls
        self._method = method

    def __enter__(self) -> None:
        self._calls.note(1)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self._calls.note_cancelled(self._method)
        self._calls.note(-1)


class _Deadline:
    """As asyncio.timeout, which costs four times as much (and wait_for a task): TimeoutError when it is over."""

    __slots__ = ("_before", "_is_over", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self._end)

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._timer.cancel()
        # Somebody else may have cancelled the task too: that goes on.
        if self._is_over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error


def _serializer(serializer: Any) -> Any:
    """Leaves bytes as they are: a behaviour may answer with the wire's own, see `wire`. None takes nothing else."""
    if serializer is None:
        return None

    def encode(response: Any) -> bytes:
        return response if type(response) is bytes else serializer(response)

    return encode


def _lenient(deserializer: Any, method: str) -> Any:
    if deserializer is None:
        return None

    def decode(raw: bytes) -> Any:
        try:
            return deserializer(raw)
        except DecodeError:
            return Undecodable(method)

    return decode


def _require_decoded(request: Any) -> None:
    if isinstance(request, Undecodable):
        raise malformed(request)


def malformed(request: Undecodable) -> MalformedRequest:
    """The error for a request that could not be decoded."""
    return MalformedRequest(
        f"the request of {request.method} is not the message it should be, or a string in it is not valid UTF-8"
    )


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 2)


async def abort_with(
    method: str, error: Exception, started: float, context: grpc.aio.ServicerContext
) -> NoReturn:
    """Ends the call with the error's status and details, and logs it."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, TimeoutError):
        error = DeadlineExceeded(
            f"{method} took longer than its deadline: send a longer one or fewer queries"
        )
    code, reason, message, _ = described(error)
    if (noted := record.get()) is not None:
        noted.reason = reason
    if isinstance(error, Memory3Error):
        logger().info(
            "call_refused",
            method=method,
            code=code.name,
            reason=reason,
            message=message,
            ms=_ms_since(started),
        )
    else:
        logger().error("call_failed", method=method, ms=_ms_since(started), exc_info=error)
    status = to_status(error)
    await context.abort(code, status.message, ((_DETAILS_KEY, status.SerializeToString()),))
    raise error
