"""Noticing that a client has left while its answer is still being made.

Frameworks tell nobody: a handler that returns one whole answer would run on for a client that is
gone. Here the work races the connection's own message. Event loop only.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

Result = TypeVar("Result")


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Await the work, or cancel it when the client goes.

    Args:
        receive: The ASGI channel; the request's body must have been read.
        work: What the client waits for.

    Raises:
        ClientDisconnect: The client left; the work has been cancelled and has ended.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the connection is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass
