"""Asks an application of this process, as a client would, without a connection. Event loop only."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from server.keys import Key


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer.

    Attributes:
        status: HTTP status.
        headers: By lower-case name.
        body: The JSON object.
        was_begun: Whether the engine had taken the request.
    """

    status: int
    headers: dict[str, str]
    body: dict[str, Any]
    was_begun: bool = False


async def post(app: ASGIApp, key: Key | None, path: str, body: bytes) -> Reply:
    """Post a JSON body to a path of an application, as the holder of a key, and return the answer.

    Raises:
        Exception: The application raised it, or answered with something else than an object.
    """
    pending = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0
    headers: dict[str, str] = {}
    parts: list[bytes] = []

    async def receive() -> Message:
        if pending:
            return pending.pop()
        # The one who asks stays until it is answered, or cancelled.
        gone: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await gone

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        else:
            parts.append(message.get("body", b""))

    await app({**_scope(path, len(body)), "state": {"key": key}}, receive, send)
    return Reply(status, headers, json.loads(b"".join(parts)))


def _scope(path: str, num_bytes: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(num_bytes).encode()),
        ],
        "client": None,
        "server": None,
    }
