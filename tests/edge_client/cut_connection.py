"""A TCP proxy that passes bytes on and breaks a connection in the middle of what the server says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class CutConnection:
    """cut_after: for each connection in the order they come, bytes from the server before it is cut; None never.

    Connections after the last are not cut. hold: what would be cut stays open and says nothing more instead. address:
    where to connect.
    """

    upstream: str
    cut_after: list[int | None]
    hold: bool = False
    address: str = ""
    connections: int = 0
    sent: bytearray = field(default_factory=bytearray)
    """All that clients said."""
    _sockets: list[socket.socket] = field(default_factory=list)
    _closed: threading.Event = field(default_factory=threading.Event)

    def accept(self, listener: socket.socket) -> None:
        """Serve connections until the listener is closed."""
        host, port = self.upstream.rsplit(":", 1)
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                number, self.connections = self.connections, self.connections + 1
                server = socket.create_connection((host, int(port)))
                limit = self.cut_after[number] if number < len(self.cut_after) else None
                self._sockets += [client, server]
                threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, limit), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if target.getpeername()[1] == int(self.upstream.rsplit(":", 1)[1]):
                    self.sent += data
                data = data if limit is None else data[: limit - passed]
                target.sendall(data)
                passed += len(data)
                if passed == limit:
                    if self.hold:
                        self._closed.wait()
                    break
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that passes the other way; closing would not

    def close(self) -> None:
        """Close what is open."""
        self._closed.set()
        for each in self._sockets:
            each.close()


@contextlib.contextmanager
def cutting(upstream: str, *cut_after: int | None, hold: bool = False) -> Iterator[CutConnection]:
    """Run a proxy to `upstream` on a free port of this machine while the block lasts."""
    proxy = CutConnection(upstream, list(cut_after), hold)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.address = f"127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=proxy.accept, args=(listener,), daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
    proxy.close()
