"""Bytes on a socket, as no client library would send them."""

import json
import re
import socket
from dataclasses import dataclass

SECONDS = 20.0


@dataclass(frozen=True)
class RawAnswer:
    """What came back: all bytes until the server closed, or until the time was over."""

    data: bytes

    @property
    def statuses(self) -> list[int]:
        """The statuses of all answers, in order."""
        return [int(digits) for digits in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.data)]

    @property
    def status(self) -> int:
        """The first status; 0 if the connection was closed without one."""
        return (self.statuses or [0])[0]


def exchange(port: int, *pieces: bytes, seconds: float = SECONDS) -> RawAnswer:
    """Send bytes and read until the server closes."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            while data := connection.recv(65536):
                received += data
        except ConnectionError:
            pass  # refused in the middle of what was sent
    return RawAnswer(bytes(received))


def request(
    target: str = "/v1/models",
    *headers: str,
    method: str = "GET",
    host: str = "x",
    body: bytes = b"",
) -> bytes:
    """Return a request that closes its connection."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def completion(**fields: object) -> bytes:
    """Return the body of a completion request."""
    return json.dumps({"prompt": "hello", "max_tokens": 2, **fields}).encode()
