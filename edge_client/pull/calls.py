"""How the streams of a pull are followed and, when the connection breaks, made again from where they stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from edge_client.cancellation import Cancellation
from edge_client.errors import CertificateRefused, DeadlineExceeded, ServiceFailed, ServiceUnavailable
from edge_client.wire.channel import ChannelSettings
from edge_client.wire.errors import call_error

CALL_S = 60.0
"""Deadline of one stream. A longer file takes several, each from where the last one stopped."""
ATTEMPTS = 5
"""Streams in a row that bring nothing before it gives up."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
T = TypeVar("T")


class PullCancelled(Exception):
    """The pull was cancelled: whoever waited for it has been interrupted and does not see this."""


@dataclass(frozen=True)
class Calls:
    """How streams of one pull are made, followed and repeated, until the pull is cancelled."""

    channel: ChannelSettings
    call_s: float
    cancellation: Cancellation

    def follow(self, call: Any) -> Iterator[Any]:
        """The messages of a stream, its errors as ours; whoever stops listening ends the call."""
        self.cancellation.when_cancelled(call.cancel)
        try:
            for message in call:
                self._go_on()
                yield message
        except grpc.RpcError as error:
            self._go_on()
            raise call_error(error, self.channel.address, self.call_s) from error
        finally:
            call.cancel()

    def persistently(self, step: Callable[[], T], progress: Callable[[], int]) -> T:
        """The step's value; a step that lost its connection is done again, for as long as that brings it further.

        progress: grows when a step brought something. Raises the error of the last of ATTEMPTS vain steps.
        """
        vain, before = 0, progress()
        while True:
            try:
                return step()
            except (ServiceUnavailable, DeadlineExceeded, ServiceFailed) as error:
                now = progress()
                vain = 1 if now > before else vain + 1
                before = now
                if vain >= ATTEMPTS or isinstance(error, CertificateRefused):
                    raise
                self.pause(min(FIRST_PAUSE_S * 2 ** (vain - 1), LONGEST_PAUSE_S))

    def pause(self, seconds: float) -> None:
        """Wait; raises PullCancelled at once when the pull is."""
        self.cancellation.sleep(seconds)
        self._go_on()

    def _go_on(self) -> None:
        if self.cancellation.cancelled:
            raise PullCancelled("interrupted")
