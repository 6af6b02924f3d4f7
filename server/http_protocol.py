"""HTTP/1.1 connections with bounds on what a client may send and how long it may take.

uvicorn's protocols bound neither the headers (httptools) nor any time, and a client that stops
reading would hold its connection for ever. `ConnectionLimits` adds that to both parsers:

    connected ─► headers ─► body ─► ... answer ...      receive_timeout_seconds, from the first byte
                  |                    |                or the connection to the whole request
      max_header_bytes, max_headers    send_timeout_seconds while the write buffer stays full

Event loop only.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.settings import ServerSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """What one connection may do.

    Attributes:
        max_header_bytes: Request line and headers together.
        max_headers: Headers of one request.
        max_connections: Open connections; 0 is unlimited.
        receive_seconds: From the first byte of a request, or the connection, to its last.
        send_seconds: How long the write buffer may stay full.
    """

    max_header_bytes: int
    max_headers: int
    max_connections: int
    receive_seconds: float
    send_seconds: float


class ConnectionLimits:
    """Bounds of a connection, to be mixed into one of uvicorn's protocols."""

    bounds: ConnectionBounds
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    connections: set[Any]
    cycle: Any

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Start between two requests."""
        super().__init__(*arguments, **keywords)
        self._in_headers = True
        self._num_header_bytes = 0
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take the connection, or refuse it if there are too many."""
        super().connection_made(transport)  # type: ignore[misc]
        limit = self.bounds.max_connections
        if 0 < limit < len(self.connections):
            self.refuse(503, b"retry-after: 1\r\n")
            return
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clocks."""
        self._stop_receive_timer()
        self._stop_send_timer()
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers, then parse."""
        if self._in_headers:
            if self._num_header_bytes == 0 and self._receive_timer is None:
                self._expect_request()
            self._num_header_bytes += len(data)
        super().data_received(data)  # type: ignore[misc]
        if self._in_headers and self._num_header_bytes > self.bounds.max_header_bytes:
            self.refuse(431)

    def pause_writing(self) -> None:
        """Give a client whose buffer is full some time to read."""
        super().pause_writing()  # type: ignore[misc]
        self._stop_send_timer()
        self._send_timer = self.loop.call_later(self.bounds.send_seconds, self._cut)

    def resume_writing(self) -> None:
        """Note that the client reads."""
        super().resume_writing()  # type: ignore[misc]
        self._stop_send_timer()

    def on_response_complete(self) -> None:
        """Do not wait for ever until what is left has been read, where the connection ends."""
        super().on_response_complete()  # type: ignore[misc]
        self._limit_closing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()  # type: ignore[misc]
        self._limit_closing()

    def headers_ended(self, num_headers: int) -> None:
        """Stop counting, and refuse too many headers; called by the parsers."""
        self._in_headers = False
        if num_headers > self.bounds.max_headers:
            self.refuse(431)

    def request_ended(self) -> None:
        """Expect the next request line; called by the parsers."""
        self._in_headers = True
        self._num_header_bytes = 0
        self._stop_receive_timer()

    def refuse(self, status: int, headers: bytes = b"") -> None:
        """Say why in a status line, and close."""
        if self.transport.is_closing():
            return
        head = STATUS_LINE[status] + headers
        self.transport.write(head + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()
        self._limit_closing()

    def _limit_closing(self) -> None:
        """A connection that closes flushes its buffer first; let that take its time, too."""
        if self.transport.is_closing() and self._send_timer is None:
            self._send_timer = self.loop.call_later(self.bounds.send_seconds, self._cut)

    def _expect_request(self) -> None:
        self._stop_receive_timer()
        self._receive_timer = self.loop.call_later(self.bounds.receive_seconds, self._too_slow)

    def _too_slow(self) -> None:
        """Close a connection whose request does not come to its end."""
        self._receive_timer = None
        is_silent = self._in_headers and self._num_header_bytes == 0
        if is_silent or (self.cycle is not None and not self._awaits_body()):
            self.transport.close()
            self._limit_closing()
            return
        logger.info("a client took too long to send its request")
        self.refuse(408)

    def _awaits_body(self) -> bool:
        """Return whether the request has come in part and nothing of its answer has been sent."""
        return self._in_headers or not self.cycle.response_started

    def _cut(self) -> None:
        """Drop a connection whose client does not read; what it waits for is cancelled."""
        self._send_timer = None
        logger.info("a client took too long to read its answer")
        self.transport.abort()

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


class BoundedHttpToolsProtocol(ConnectionLimits, HttpToolsProtocol):
    """The parser in C."""

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop counting; a request that is refused never reaches the application."""
        self.headers_ended(len(self.headers))
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body, unless its request was refused."""
        if not self.transport.is_closing() and self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next request line."""
        if not self.transport.is_closing() and self.cycle is not None:
            super().on_message_complete()
        self.request_ended()


class BoundedH11Protocol(ConnectionLimits, H11Protocol):
    """The parser in Python."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Put a parser that reports what it finds in the place of the plain one."""
        super().__init__(*arguments, **keywords)
        self.conn = _ReportingConnection(self, self.bounds.max_header_bytes)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless an answer has begun already."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()
        self._limit_closing()


class _ReportingConnection(h11.Connection):
    """Tells the protocol where a request's headers and the request itself end."""

    def __init__(self, protocol: BoundedH11Protocol, max_header_bytes: int) -> None:
        super().__init__(h11.SERVER, max_header_bytes)
        self._protocol = protocol

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            if len(event.headers) > self._protocol.bounds.max_headers:
                raise h11.RemoteProtocolError("too many headers", 431)
            self._protocol.headers_ended(len(event.headers))
        elif isinstance(event, h11.EndOfMessage):
            self._protocol.request_ended()
        return event


PROTOCOLS = {"httptools": BoundedHttpToolsProtocol, "h11": BoundedH11Protocol}


def make_protocol(settings: ServerSettings) -> type[asyncio.Protocol]:
    """Return the class of connections with the bounds of the settings."""
    bounds = ConnectionBounds(
        max_header_bytes=settings.max_header_bytes,
        max_headers=settings.max_headers,
        max_connections=settings.max_connections,
        receive_seconds=settings.receive_timeout_seconds,
        send_seconds=settings.send_timeout_seconds,
    )
    parser = PROTOCOLS[settings.http_parser]
    return cast("type[asyncio.Protocol]", type(parser.__name__, (parser,), {"bounds": bounds}))
