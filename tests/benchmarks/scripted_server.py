"""A server that answers with given bytes, in given pieces, and remembers what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchmarks.load.target import Target

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chat_event(text: str = "", **fields: Any) -> bytes:
    """An event of a chat, as it stands in a stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice], **fields}).encode() + b"\n\n"


def chunked(body: bytes, size: int = 1000) -> bytes:
    """A body in HTTP chunks of a size, with the headers that say so."""
    pieces = [body[n : n + size] for n in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def refusal(status: int, body: str) -> bytes:
    """A whole answer with an error."""
    return f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


# Takes the request line and the body; returns the pieces to send. Without any it never answers.
Script = Callable[[str, dict[str, Any]], Sequence[bytes]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Target]:
    """Serve until the block ends."""
    over = asyncio.Event()
    handlers: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(lines.get("Content-Length", 0)))
        pieces = script(head.split("\r\n")[0], json.loads(body or b"{}"))
        # The client is free to leave when it has read enough.
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                # Pieces must reach the other side one by one.
                await asyncio.sleep(0.001)
        if not pieces:
            await over.wait()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.get_running_loop().create_task(answer(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield Target("scripted", "127.0.0.1", server.sockets[0].getsockname()[1], model="tiny")
    finally:
        over.set()
        server.close()
        await asyncio.gather(*handlers)
        await server.wait_closed()
