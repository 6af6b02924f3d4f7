"""A few requests begin in each turn of the event loop, so that a crowd does not hold up the rest.

To begin a request takes some tenths of a millisecond, and all that have arrived would begin in one
turn: a thousand at once kept the events of running streams and the health routes for half a second.

    turn n     4 begin, events are written, sockets are read
    turn n+1   the next 4 begin, ...

Pure ASGI; event loop only.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

# Together some milliseconds.
REQUESTS_PER_TURN = 4


class Turns:
    """Lets requests that ask for work begin one after another, in the order of their arrival."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._num_begun = 0
        self._is_counting = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, in a later turn if enough have begun in this one."""
        if scope["type"] == "http" and scope["method"] == "POST":
            if not self._is_counting:
                self._count_next_turn()
            if self._waiting or self._num_begun >= REQUESTS_PER_TURN:
                turn = asyncio.get_running_loop().create_future()
                self._waiting.append(turn)
                await turn
            else:
                self._num_begun += 1
        await self._app(scope, receive, send)

    def _count_next_turn(self) -> None:
        self._is_counting = True
        asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Let the first of those who wait begin, and look again as long as anybody does."""
        self._is_counting = False
        self._num_begun = 0
        while self._waiting and self._num_begun < REQUESTS_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._num_begun += 1
        if self._num_begun:
            self._count_next_turn()
