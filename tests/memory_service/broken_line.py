"""A line between a client and a server that can be cut, slowed and broken off in the middle of an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_PIECE_BYTES = 1 << 16


class Line:
    """Passes TCP connections on to a port of this machine. What befalls it befalls connections that are open too."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._mended = threading.Event()
        self.port = self._listener.getsockname()[1]
        self._slow_s = 0.0
        self.cuts = 0
        self._down = False
        self._left: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def take_down(self) -> None:
        """Resets every connection, those that come as well."""
        self._down = True
        self._reset_all()

    def slow_down(self, seconds: float) -> None:
        """Every piece of an answer comes so much later, or when the line is mended."""
        self._mended.clear()
        self._slow_s = seconds

    def cut_after(self, size: int) -> None:
        """Resets, once, the connection on which an answer comes when so many bytes of answers have passed."""
        self._left = size

    def mend(self) -> None:
        """All as it should be; what waits goes on."""
        self._down, self._slow_s, self._left = False, 0.0, None
        self._mended.set()

    def close(self) -> None:
        """Ends all connections."""
        self._closed.set()
        self._mended.set()
        self._listener.close()
        self._reset_all()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = None
            with contextlib.suppress(OSError):
                far = None if self._down else socket.create_connection(("127.0.0.1", self._to_port))
            if far is None:
                _reset(near)
                continue
            with self._lock:
                self._pairs.append((near, far))
            for source, target, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass_on, args=(source, target, answers), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while piece := source.recv(_PIECE_BYTES):
                if answers:
                    if self._slow_s:
                        self._mended.wait(self._slow_s)
                    if self._left is not None and (left := self._left) < len(piece):
                        self._left = None
                        self.cuts += 1
                        target.sendall(piece[:left])
                        break
                    if self._left is not None:
                        self._left -= len(piece)
                target.sendall(piece)
        except OSError:
            pass
        finally:
            _reset(source)
            _reset(target)

    def _reset_all(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _reset(end)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextlib.contextmanager
def line_to(port: int) -> Iterator[Line]:
    """A line that is sound at first."""
    line = Line(port)
    try:
        yield line
    finally:
        line.close()
