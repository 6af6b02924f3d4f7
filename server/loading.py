"""What listens from the first moment on: a stand-in until the application has been loaded.

    uvicorn ─► LoadingApp ─► stand-in: /live 200, everything else 503 with Retry-After;
                   |                   /ready says whether the model is fetched or loaded
                   |
                   └──────► the application, once a thread has made it and its engine has answered

The thread loads; the stand-in and the change to the application are the event loop's. If loading
fails, or a signal comes before it has ended, the server stops; the error is kept for the command.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server.error_handlers import describe_error
from server.layers import surround
from server.request_errors import LoadingError
from server.settings import Settings
from server.state import ServerState

logger = logging.getLogger(__name__)

LIVE_PATH = "/live"
PROBE_PATHS = frozenset({"/health", "/ping", "/ready"})


class LoadingApp:
    """An ASGI application that becomes another one.

    Attributes:
        error: What kept the application from being made, or None.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], FastAPI],
        on_ready: Callable[[], None],
        stage: Callable[[], str],
    ) -> None:
        """Prepare; nothing is loaded before the lifespan begins.

        Args:
            settings: What the operator set.
            load: Makes the application; called on a thread of its own.
            on_ready: Told once, on the event loop, when requests are taken.
            stage: Returns what the thread does now, in a word.
        """
        self.error: BaseException | None = None
        self._load = load
        self._on_ready = on_ready
        self._stage = stage
        self._stand_in = surround(self._stand_in_answer, settings)
        self._app: FastAPI | None = None
        self._lifespan: AbstractAsyncContextManager[Any] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> ServerState | None:
        """The application's state; None before there is one."""
        state: ServerState | None = None if self._app is None else self._app.state.server
        return state

    @property
    def is_loading(self) -> bool:
        """Whether the thread that loads may still be at work."""
        return self._app is None and self.error is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        app: ASGIApp = self._stand_in if self._app is None else self._app
        await app(scope, receive, send)

    async def _stand_in_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say that the process lives, and that everything else has to wait."""
        if scope["type"] != "http":
            return
        path = scope["path"].removeprefix("/v1")
        if path == LIVE_PATH:
            response = JSONResponse({"status": "live"})
        elif path in PROBE_PATHS:
            status = {"status": self._stage()}
            response = JSONResponse(status, 503, headers={"Retry-After": "5"})
        else:
            await describe_error(LoadingError()).response()(scope, receive, send)
            return
        await response(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Begin to load at the start, and end the application at the end."""
        await receive()
        self._task = asyncio.create_task(self._become())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._lifespan is not None:
            await self._lifespan.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def _become(self) -> None:
        """Make the application, start its engine, and put it in the stand-in's place."""
        try:
            app = await run_on_thread(self._load)
            lifespan = app.router.lifespan_context(app)
            await lifespan.__aenter__()
            self._lifespan = lifespan
            self._app = app
            self._on_ready()
        except Exception as error:  # noqa: BLE001 - the command tells it to the operator
            self.error = error


async def run_on_thread(call: Callable[[], Any]) -> Any:
    """Await a call on a daemon thread of its own, which nobody waits for at the end."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.done():
            return  # nobody waits any more
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:  # noqa: BLE001 - raised where it is awaited
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await outcome
