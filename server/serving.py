"""Running an application until a signal or its engine's end, and the order in which it ends.

    first signal   draining: /ready is 503, new requests get 503 + Retry-After,
       |           running ones go on
       |           until none is left, or shutdown_timeout_seconds have passed;
       |           then the rest end with an error event
    second signal  the rest end with an error event at once
       v
    listener and connections close, the engine stops, exit code 0

    engine dead    everyone who waits gets an error event, /live and /health are 503
    or hung        for some seconds, so that a balancer sees it; then as above, exit code 70

The signal handlers run on the main thread, everything else on its event loop.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI

from engine import EngineDeadError, EngineStoppingError
from server.engine_watch import EngineCondition, EngineWatch
from server.http_protocol import make_protocol
from server.loading import LoadingApp
from server.settings import ServerSettings
from server.state import ServerState

logger = logging.getLogger(__name__)

# How long ended streams may take to reach slow readers.
CLOSING_SECONDS = 5
# How long /live and /health say that the engine is gone before the process goes, too.
FAILURE_SECONDS = 3.0
# An engine that dies more often than that is not started again.
MAX_RESTARTS = 3
RESTART_WINDOW_SECONDS = 300.0
START_FAILED = 1
ENGINE_FAILED = 70  # EX_SOFTWARE of sysexits.h


class Served(Protocol):
    """What is served: an application, or one that is still being loaded."""

    @property
    def state(self) -> ServerState | None:
        """The application's state, once there is one."""

    @property
    def error(self) -> BaseException | None:
        """What kept it from being loaded."""


class LoadedApp:
    """An application that is there already."""

    error = None

    def __init__(self, app: FastAPI) -> None:
        """Read the application's state."""
        self.state: ServerState | None = app.state.server


class SlipstreamServer(uvicorn.Server):
    """A uvicorn server that drains before it closes its listener, and goes when its engine goes.

    Attributes:
        exit_code: What the process is to end with.
        is_hung: Whether the engine hangs, so that nobody may wait for its thread.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        served: Served,
        settings: ServerSettings,
        *,
        on_listening: Callable[[str, int], None],
    ) -> None:
        """Prepare to serve.

        Args:
            config: uvicorn's configuration.
            served: What its application is made of.
            settings: How long to drain, and what the engine's failure leads to.
            on_listening: Told the host and port once connections are taken.
        """
        super().__init__(config)
        self.exit_code = 0
        self.is_hung = False
        self._served = served
        self._settings = settings
        self._on_listening = on_listening
        self._drain_ends: float | None = None
        self._failure_ends: float | None = None
        self._restarts: list[float] = []
        self._watch: EngineWatch | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self._on_listening(host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain at the first signal and end it at the second."""
        del sig, frame
        if self._drain_ends is None:
            if self._served.state is not None:
                self._served.state.draining = True
            self._drain_ends = time.monotonic() + self._settings.shutdown_timeout_seconds
        else:
            self._drain_ends = time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Look, ten times a second, whether there is a reason to end."""
        if not self.should_exit:
            self.should_exit = await self._is_over()
        return await super().on_tick(counter)

    async def _is_over(self) -> bool:
        """Return whether the server is to close now."""
        if self._served.error is not None:
            self.exit_code = START_FAILED
            return True
        state = self._served.state
        if state is None:
            return self._drain_ends is not None
        now = time.monotonic()
        if state.started:
            await self._look_after_engine(state)
        if self._failure_ends is not None and now >= self._failure_ends:
            return True
        if self._drain_ends is None:
            return False
        state.draining = True  # a signal that came while the model was loaded
        if now < self._drain_ends and state.num_active > 0:
            return False
        _end_requests(state)
        return True

    async def _look_after_engine(self, state: ServerState) -> None:
        """Tell everyone of an engine that died or hangs, once, and do what is to be done."""
        if self._watch is None:
            self._watch = EngineWatch(state.manager, self._settings.hang_timeout_seconds)
        condition = self._watch.look()
        if self.is_hung and condition is EngineCondition.WELL and self._failure_ends is None:
            self.is_hung = False
            state.recover()
            logger.warning("the engine goes on")
        if condition is EngineCondition.WELL or state.failure is not None:
            return
        state.fail(condition.value, EngineDeadError(f"the engine is {condition.value}"))
        logger.critical("the engine is %s", condition.value)
        restarts = condition is EngineCondition.DEAD and self._may_restart()
        if restarts and await _restart(state):
            return
        self.is_hung = condition is EngineCondition.HUNG
        if self._settings.engine_failure != "stay":
            self.exit_code = ENGINE_FAILED
            self._failure_ends = time.monotonic() + FAILURE_SECONDS

    def _may_restart(self) -> bool:
        """Return whether the engine is to be started again, and count it."""
        if self._settings.engine_failure != "restart":
            return False
        now = time.monotonic()
        self._restarts = [then for then in self._restarts if now - then < RESTART_WINDOW_SECONDS]
        self._restarts.append(now)
        return len(self._restarts) <= MAX_RESTARTS


async def _restart(state: ServerState) -> bool:
    """Start the engine thread again, with an empty cache; return whether it runs."""
    try:
        await asyncio.to_thread(state.manager.start)
    except Exception:  # whatever it is, the process ends with it
        logger.exception("the engine could not be started again")
        return False
    state.recover()
    logger.warning("the engine was started again")
    return True


def _end_requests(state: ServerState) -> None:
    """End what still runs with an error that its client can read."""
    if state.client.num_open:
        logger.warning("shutting down with %d requests open", state.client.num_open)
    state.client.abort_all(EngineStoppingError("the server is shutting down"))


def make_server(
    app: FastAPI | LoadingApp,
    settings: ServerSettings,
    on_listening: Callable[[str, int], None],
) -> SlipstreamServer:
    """Return the server of an application, not started yet."""
    served: Served = app if isinstance(app, LoadingApp) else LoadedApp(app)
    application: Any = app
    config = uvicorn.Config(
        application,
        host=settings.host,
        port=settings.port,
        http=make_protocol(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return SlipstreamServer(config, served, settings, on_listening=on_listening)


def run(
    app: FastAPI | LoadingApp,
    settings: ServerSettings,
    on_listening: Callable[[str, int], None],
) -> int:
    """Serve until a signal; return the exit code of the process.

    Args:
        app: From `create_app`, or what becomes such an application.
        settings: Where to listen and how long to drain.
        on_listening: Told the host and the port, once.
    """
    _raise_descriptor_limit()

    def ready(host: str, port: int) -> None:
        if not isinstance(app, LoadingApp):
            settle_memory()
        on_listening(host, port)

    server = make_server(app, settings, ready)
    # Who closes a terminal wants the server to end as well as by any other signal.
    signal.signal(signal.SIGHUP, server.handle_exit)
    try:
        server.run()
    except SystemExit:
        # uvicorn's way of saying that it could not start; it has logged why.
        return START_FAILED
    if server.is_hung or (isinstance(app, LoadingApp) and app.is_loading):
        # A thread is inside of a computation that nothing ends, and the interpreter would wait.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(server.exit_code)
    return server.exit_code if server.started else START_FAILED


def settle_memory() -> None:
    """Take what is alive now for good; called when everything has been loaded.

    Walking model and libraries in every full collection was half the time of rendering a token.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def _raise_descriptor_limit() -> None:
    """Allow as many open connections as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        logger.info("open files are limited to %d, no longer to %d", hard, soft)
