"""One gRPC channel over the channels of several services: calls go to the first of them that is connected.

    "one.example:7430,two.example:7430"     calls go to one while it is connected, else to two, and back again

Each service has its own name, certificate check, resolution and reconnection. A call belongs to one service; a caller
that sends it again elsewhere reports it first (`FailoverChannel.failed`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import grpc

_READY = grpc.ChannelConnectivity.READY
_DOWN = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
_WAIT_S = 2.0
_SHARE = 0.5
AVOIDED_S = {grpc.StatusCode.UNAVAILABLE: 1.0, grpc.StatusCode.DEADLINE_EXCEEDED: 30.0}
"""For which a service is passed over whose call failed so; meanwhile gRPC notices a lost connection, by its pings."""


class FailoverChannel(grpc.Channel):
    """Channels in the order in which they are preferred. Thread-safe; connects to all of them at once.

    A call waits until each service that is preferred to the one it goes to was connected or failed once, for half of
    its timeout and two seconds at most.
    """

    def __init__(self, channels: Sequence[grpc.Channel]) -> None:
        self._channels = list(channels)
        self._ready = [False] * len(self._channels)
        self._tried = [False] * len(self._channels)
        self._avoided_until = [0.0] * len(self._channels)
        self._sent: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._changed = threading.Condition()
        self._listeners = [self._listener(index) for index in range(len(self._channels))]
        for channel, listener in zip(self._channels, self._listeners, strict=True):
            channel.subscribe(listener, try_to_connect=True)

    def _listener(self, index: int) -> Callable[[grpc.ChannelConnectivity], None]:
        def listen(state: grpc.ChannelConnectivity) -> None:
            with self._changed:
                self._ready[index] = state is _READY
                self._tried[index] |= state is _READY or state in _DOWN
                self._changed.notify_all()

        return listen

    def preferred(self, timeout_s: float | None = None) -> int:
        """The index of the channel for a call with this timeout: the first that is connected, else the first."""
        with self._changed:
            wait_s = _WAIT_S if timeout_s is None else min(_WAIT_S, timeout_s * _SHARE)
            self._changed.wait_for(self._known, wait_s)
            ready = [index for index, is_ready in enumerate(self._ready) if is_ready]
            now = time.monotonic()
            return next((index for index in ready if self._avoided_until[index] <= now), ready[0] if ready else 0)

    def failed(self, call: Any) -> None:
        """Passes over the service that this call went to, for a while, if it was not answered there."""
        avoided_s = AVOIDED_S.get(call.code()) if call.done() else None
        with self._changed:
            if avoided_s is not None and (index := self._sent.get(call)) is not None:
                self._avoided_until[index] = time.monotonic() + avoided_s

    def sent(self, call: Any, index: int) -> None:
        """Remembers where a call went."""
        with self._changed:
            self._sent[call] = index

    def _known(self) -> bool:
        """Whether it is known which service is the first that is connected, or that none is."""
        for ready, tried in zip(self._ready, self._tried, strict=True):
            if ready or not tried:
                return ready
        return True

    def unary_unary(self, *args: Any, **kwargs: Any) -> _Calls:
        """See grpc.Channel."""
        return _Calls(self, [channel.unary_unary(*args, **kwargs) for channel in self._channels])

    def unary_stream(self, *args: Any, **kwargs: Any) -> _Calls:
        """See grpc.Channel."""
        return _Calls(self, [channel.unary_stream(*args, **kwargs) for channel in self._channels])

    def stream_unary(self, *args: Any, **kwargs: Any) -> _Calls:
        """See grpc.Channel."""
        return _Calls(self, [channel.stream_unary(*args, **kwargs) for channel in self._channels])

    def stream_stream(self, *args: Any, **kwargs: Any) -> _Calls:
        """See grpc.Channel."""
        return _Calls(self, [channel.stream_stream(*args, **kwargs) for channel in self._channels])

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """See grpc.Channel; of the first service."""
        self._channels[0].subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """See grpc.Channel."""
        self._channels[0].unsubscribe(callback)

    def close(self) -> None:
        """Close all channels."""
        for channel, listener in zip(self._channels, self._listeners, strict=True):
            channel.unsubscribe(listener)
            channel.close()

    def __enter__(self) -> FailoverChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Calls:
    """A method on every channel; each call goes to the preferred one."""

    def __init__(self, owner: FailoverChannel, methods: Sequence[Any]) -> None:
        self._owner = owner
        self._methods = methods

    def __call__(self, request: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        method, _, left = self._chosen(timeout)
        return method(request, timeout=left, **kwargs)

    def with_call(self, request: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        method, _, left = self._chosen(timeout)
        return method.with_call(request, timeout=left, **kwargs)

    def future(self, request: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        method, index, left = self._chosen(timeout)
        call = method.future(request, timeout=left, **kwargs)
        self._owner.sent(call, index)
        return call

    def _chosen(self, timeout: float | None) -> tuple[Any, int, float | None]:
        """The method, the index of its channel, and what is left of the timeout."""
        started = time.monotonic()
        index = self._owner.preferred(timeout)
        left = None if timeout is None else max(timeout - (time.monotonic() - started), 0.0)
        return self._methods[index], index, left
