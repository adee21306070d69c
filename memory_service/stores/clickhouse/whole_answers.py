"""Connections to a store's server that take no answer whose head broke off.

Python's http.client reads the end of a connection as the end of the headers. What is left of such an answer has
status 200 and no rows: a document that is there would look as if it were not, and be written twice.
"""

from __future__ import annotations

from http.client import RemoteDisconnected

from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection


def whole(response: HTTPResponse) -> HTTPResponse:
    """The response, whose length is known or told in chunks; raises RemoteDisconnected for any other.

    ClickHouse says either of every answer. The client repeats what only reads, as after any broken connection.
    """
    if not response.chunked and response.length_remaining is None:
        raise RemoteDisconnected("the answer broke off within its headers")
    return response


class _Connection(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # what urllib3 says of its own
        return whole(super().getresponse())


class _SecureConnection(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        return whole(super().getresponse())


class _Connections(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecureConnections(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def connections(host: str, port: int, *, secure: bool) -> PoolManager:
    """For clients of one server; through the proxy of the environment where it names one."""
    proxy = check_env_proxy("https" if secure else "http", host, port)
    pool: PoolManager = get_pool_manager(https_proxy=proxy) if secure else get_pool_manager(http_proxy=proxy)
    pool.pool_classes_by_scheme = {"http": _Connections, "https": _SecureConnections}
    return pool
