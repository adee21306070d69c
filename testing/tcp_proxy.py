"""A TCP proxy in front of a server, whose connections tests reset, delay, or cut in the middle of a response."""

from __future__ import annotations

import contextlib
import socket
import threading


class TcpProxy:
    """Forwards connections at `address` to `upstream` (host:port). Faults apply to open connections too.

    limits: response bytes before a connection is cut, by order of connection; None, and past the last: never.
    hold: a connection that would be cut stays open and silent instead. sent: all bytes that clients sent.
    """

    def __init__(self, upstream: str, *limits: int | None, hold: bool = False) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream, self._limits, self._hold = (host, int(port)), limits, hold
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._mended = threading.Event()
        self._slow = self._down = False
        self._left: int | None = None
        self.connections = self.cuts = 0
        self.sent = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def take_down(self) -> None:
        """Reset every connection, and each new one."""
        self._down = True
        for end in self._ends:
            reset(end)

    def slow_down(self) -> None:
        """Hold responses until `mend`."""
        self._mended.clear()
        self._slow = True

    def cut_after(self, size: int) -> None:
        """Reset one connection once `size` bytes of responses have passed."""
        self._left = size

    def mend(self) -> None:
        """End all faults; held responses continue."""
        self._down, self._slow, self._left = False, False, None
        self._mended.set()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.take_down()
        self._mended.set()
        reset(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._down:
                    reset(near)
                    continue
                limit = self._limits[self.connections] if self.connections < len(self._limits) else None
                self.connections += 1
                far = socket.create_connection(self._upstream)
                self._ends += [near, far]
                for ends in ((near, far, False, None), (far, near, True, limit)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool, limit: int | None) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if not answers:
                    self.sent += piece
                elif self._slow:
                    self._mended.wait()
                if answers and self._left is not None:
                    left, self._left = self._left, self._left - len(piece)
                    if left < len(piece):
                        limit, self._left = left, None
                target.sendall(piece[:limit])
                if limit is not None and limit <= len(piece):
                    self.cuts += 1
                    if self._hold:
                        self._mended.wait()
                    break
                limit = None if limit is None else limit - len(piece)
        reset(source)
        reset(target)


def reset(end: socket.socket) -> None:
    """Shut down and close a socket."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes the thread that passes the other way; closing would not
    end.close()
