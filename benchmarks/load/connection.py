"""One HTTP exchange on a connection of its own, as cheap as Python makes it.

The body is handed on from within the callback that received it, so that its time of arrival is
that of the bytes and not that of a task which had to be woken first. Every exchange opens its own
connection: all servers are asked alike, and none is helped by what an earlier exchange left open.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import Callable
from typing import cast

import httptools

from benchmarks.load.target import Target

# Takes the status, a piece of the body, and when it arrived (`time.perf_counter`).
Receiver = Callable[[int, bytes, float], None]


class ExchangeError(Exception):
    """The exchange did not come to its end; the text says why."""


class _Connection(asyncio.Protocol):
    """Sends a request and takes its answer apart."""

    def __init__(self, request: bytes, receiver: Receiver) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.status = 0
        self._request = request
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._arrived_seconds = 0.0
        # Without either header the body ends where the connection does.
        self._ends_by_itself = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are such without inheriting from it.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._arrived_seconds = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"malformed HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self.status and not self._ends_by_itself:
            self.on_message_complete()
        self._fail("connection lost")
        if not self.closed.done():
            self.closed.set_result(None)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_by_itself = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._receiver(self.status, body, self._arrived_seconds)

    def on_message_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(ExchangeError(reason))


async def exchange(target: Target, request: bytes, receiver: Receiver) -> int:
    """Send a request, hand on its answer as it comes, and return the status.

    Raises:
        ExchangeError: There was no connection, or it did not bring a whole answer.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, connection = await loop.create_connection(
            lambda: _Connection(request, receiver),
            target.host,
            target.port,
            ssl=_tls_context() if target.tls else None,
        )
    except OSError as error:
        raise ExchangeError(f"no connection: {error.strerror or error}") from error
    try:
        await connection.ended
    finally:
        transport.abort()
        await asyncio.shield(connection.closed)
    return connection.status


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
