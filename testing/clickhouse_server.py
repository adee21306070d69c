"""A server that speaks ClickHouse's HTTP interface and has chdb, the real engine, execute every query.

    python clickhouse_server.py FOLDER PORT_FILE [PASSWORD [PORT]]

What it speaks: query in the address or the body, data behind `INSERT … FORMAT x`, parameters, settings, databases,
basic authentication, /ping, errors with X-ClickHouse-Exception-Code. What it does not: sessions, compression and
client_protocol_version, which clients do without when a server ignores them.

Beyond ClickHouse's: /stall?when=before|during|after&match=TEXT&seconds=S holds the next request whose statement has the
text in it: before it is executed, with its handle on the engine, or before it is answered. It is executed in any case,
as a server does whose client has given up. /kill is kill -9.
"""

import base64
import contextlib
import os
import queue
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb

HANDLES = 6
LARGEST_REQUEST_LINE = 1 << 20
# Parameters that the HTTP interface itself takes; all others are settings.
TRANSPORT = {
    "query",
    "database",
    "session_id",
    "session_timeout",
    "session_check",
    "query_id",
    "quota_key",
    "compress",
    "decompress",
    "wait_end_of_query",
    "client_protocol_version",
    "role",
    "default_format",
    "buffer_size",
    "send_progress_in_http_headers",
    "http_headers_progress_interval_ms",
    "enable_http_compression",
}
INSERT = re.compile(rb"\s*INSERT\s+INTO\s+(.+?)\s+FORMAT\s+(\w+)[ \t]*\n", re.IGNORECASE | re.DOTALL)
FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
HAS_RESULT = re.compile(rb"\s*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS|CHECK)\b", re.IGNORECASE)
CODE = re.compile(r"Code: (\d+)\.")
UNKNOWN_TABLE, AUTHENTICATION_FAILED = 60, 516


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Handle:
    """One connection to the engine with its state; used by one request at a time."""

    def __init__(self, path: str) -> None:
        self.connection = chdb.connect(path)
        self._settings: dict[str, str] = {}

    def run(self, sql: bytes, database: str, settings: dict[str, str], parameters: dict[str, str]) -> Any:
        query = self.connection.query
        for name in self._settings.keys() - settings.keys():
            query(f"SET {name} = DEFAULT")
        for name, value in settings.items() - self._settings.items():
            query(f"SET {name} = {quoted(value)}")
        self._settings = settings
        query(f"USE {database}")
        insert = INSERT.match(sql)
        if insert is None:
            try:
                return query(sql.decode(), "TabSeparated", params=parameters)
            except UnicodeDecodeError:  # a vector as bytes
                return query(sql, "TabSeparated", params=parameters)
        with tempfile.NamedTemporaryFile(suffix=".data") as file:
            file.write(sql[insert.end() :])
            file.flush()
            into, kind = insert[1].decode(), insert[2].decode()
            return query(f"INSERT INTO {into} FROM INFILE {quoted(file.name)} FORMAT {kind}")


class Engine:
    """Handles, each for one request at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._free: queue.SimpleQueue[Handle] = queue.SimpleQueue()
        for _ in range(HANDLES):
            self._free.put(Handle(path))

    @contextlib.contextmanager
    def handle(self) -> Iterator[Handle]:
        handle = self._free.get()
        try:
            yield handle
        except Exception:  # what is left of the answer would come before the next one
            handle.connection.close()
            handle = Handle(self._path)
            raise
        finally:
            self._free.put(handle)

    def close(self) -> None:
        while not self._free.empty():
            self._free.get().connection.close()


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine
    password = ""
    stalls: list[dict[str, str]] = []  # noqa: RUF012  of all requests

    def handle_one_request(self) -> None:
        # As the base class does, but parameters make longer lines than it takes.
        self.raw_requestline = self.rfile.readline(LARGEST_REQUEST_LINE)
        if not self.raw_requestline:
            self.close_connection = True
            return
        if self.parse_request():
            self.answer()
            self.wfile.flush()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = self.chunks()
        address = urlsplit(self.path)
        if address.path in ("/ping", "/stall"):
            if address.path == "/stall":
                self.stalls[:] = [dict(parse_qsl(address.query))]
            self.send(HTTPStatus.OK, b"Ok.\n", {})
            return
        if address.path == "/kill":
            os.kill(os.getpid(), signal.SIGKILL)
        expected = "Basic " + base64.b64encode(f"default:{self.password}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.fail(f"Code: {AUTHENTICATION_FAILED}. DB::Exception: default: Authentication failed")
            return
        given = dict(parse_qsl(address.query, keep_blank_values=True))
        query = given.get("query", "").encode()
        sql = query + b"\n" + body if query else body
        parameters = {n.removeprefix("param_"): v for n, v in given.items() if n.startswith("param_")}
        settings = {n: v for n, v in given.items() if n not in TRANSPORT and not n.startswith("param_")}
        stall = self.stall_of(sql)
        try:
            wait(stall, "before")
            with self.engine.handle() as handle:
                wait(stall, "during")
                content = handle.run(sql, given.get("database", "default"), settings, parameters).bytes() or b""
        except Exception as error:
            self.fail(str(error))
            return
        wait(stall, "after")
        headers = {"X-ClickHouse-Query-Id": given.get("query_id", ""), "X-ClickHouse-Timezone": "UTC"}
        if HAS_RESULT.match(sql):
            format_clause = FORMAT.search(sql)
            headers["X-ClickHouse-Format"] = format_clause[1].decode() if format_clause else "TabSeparated"
        self.send(HTTPStatus.OK, content, headers)

    def stall_of(self, sql: bytes) -> dict[str, str]:
        head = sql[:500].decode(errors="replace").replace("`", "")
        for stall in list(self.stalls):
            if stall["match"] in head:
                with contextlib.suppress(ValueError):  # another request took it
                    self.stalls.remove(stall)
                    return stall
        return {}

    def chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def fail(self, message: str) -> None:
        found = CODE.search(message)
        code = int(found[1]) if found else 1002
        status = {UNKNOWN_TABLE: HTTPStatus.NOT_FOUND, AUTHENTICATION_FAILED: HTTPStatus.FORBIDDEN}
        headers, other = {"X-ClickHouse-Exception-Code": str(code)}, HTTPStatus.INTERNAL_SERVER_ERROR
        self.send(status.get(code, other), message.encode(), headers)

    def send(self, status: HTTPStatus, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def wait(stall: dict[str, str], when: str) -> None:
    if stall.get("when") == when:
        time.sleep(float(stall["seconds"]))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that gave up or was killed
            super().handle_error(request, client_address)


def main(folder: str, port_file: str, password: str = "", port: str = "0") -> None:
    Request.engine, Request.password = Engine(folder), password
    server = Server(("127.0.0.1", int(port)), Request)
    temporary = Path(f"{port_file}.new")
    temporary.write_text(f"{server.server_address[1]}\n")
    temporary.replace(port_file)

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    server.serve_forever(poll_interval=0.05)
    Request.engine.close()
    os._exit(0)  # threads of clients that keep their connections open


if __name__ == "__main__":
    main(*sys.argv[1:])
