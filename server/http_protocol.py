"""The HTTP/1.1 parser with a bound on the size of headers, which it lacks by itself.

Without one, a client that never ends its headers fills the memory. Event loop only.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers exceed `MAX_HEADER_BYTES`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Start between two requests."""
        super().__init__(*arguments, **keywords)
        self._in_headers = True
        self._num_header_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers, then parse."""
        if self._in_headers:
            self._num_header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._num_header_bytes > MAX_HEADER_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_headers = True
        self._num_header_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next request line."""
        super().on_message_complete()
        self._in_headers = True
        self._num_header_bytes = 0

    def _refuse(self) -> None:
        """Say why, and close."""
        if self.transport.is_closing():
            return
        self.transport.write(STATUS_LINE[431] + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()
