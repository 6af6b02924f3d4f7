"""Running an application until a signal, and the order in which it ends.

    first signal   draining: /ready is 503, new generation requests get 503 + Retry-After,
       |           running ones go on
       |           until none is left, or shutdown_timeout_seconds have passed;
       |           then the rest end with an error event
    second signal  the rest end with an error event at once
       v
    listener and connections close, the engine stops, exit code 0

The signal handlers run on the main thread, everything else on its event loop.
"""

import gc
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from engine import EngineStoppingError
from server.http_protocol import make_protocol
from server.settings import ServerSettings
from server.state import ServerState

logger = logging.getLogger(__name__)

# How long ended streams may take to reach slow readers.
CLOSING_SECONDS = 5
START_FAILED = 1


class SlipstreamServer(uvicorn.Server):
    """A uvicorn server that drains before it closes its listener."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        *,
        drain_seconds: float,
        on_listening: Callable[[str, int], None],
    ) -> None:
        """Prepare to serve.

        Args:
            config: uvicorn's configuration.
            state: The application's state.
            drain_seconds: How long running requests may go on after the first signal.
            on_listening: Told the host and port once connections are taken.
        """
        super().__init__(config)
        self._state = state
        self._drain_seconds = drain_seconds
        self._on_listening = on_listening
        self._drain_ends: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self._on_listening(host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain at the first signal and end it at the second."""
        del sig, frame
        if self._drain_ends is None:
            self._state.draining = True
            self._drain_ends = time.monotonic() + self._drain_seconds
        else:
            self._drain_ends = time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Look, ten times a second, whether the drain is over."""
        if self._drain_ends is not None and not self.should_exit:
            timed_out = time.monotonic() >= self._drain_ends
            if timed_out or self._state.num_active == 0:
                self._end_requests()
                self.should_exit = True
        return await super().on_tick(counter)

    def _end_requests(self) -> None:
        """End what still runs with an error that its client can read."""
        if self._state.client.num_open:
            logger.warning("shutting down with %d requests open", self._state.client.num_open)
        self._state.client.abort_all(EngineStoppingError("the server is shutting down"))


def make_server(
    app: FastAPI, settings: ServerSettings, on_listening: Callable[[str, int], None]
) -> SlipstreamServer:
    """Return the server of an application, not started yet."""
    state: ServerState = app.state.server
    config = uvicorn.Config(
        app,
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
    return SlipstreamServer(
        config,
        state,
        drain_seconds=settings.shutdown_timeout_seconds,
        on_listening=on_listening,
    )


def run(app: FastAPI, settings: ServerSettings, on_listening: Callable[[str, int], None]) -> int:
    """Serve until a signal; return the exit code of the process.

    Args:
        app: From `create_app`.
        settings: Where to listen and how long to drain.
        on_listening: Told the host and the port, once.
    """

    def ready(host: str, port: int) -> None:
        # What is alive now lives as long as the process. Walking it, model and libraries, in every
        # full collection was half the time of rendering a token.
        gc.collect()
        gc.freeze()
        gc.enable()
        on_listening(host, port)

    server = make_server(app, settings, ready)
    try:
        server.run()
    except SystemExit:
        # uvicorn's way of saying that it could not start; it has logged why.
        return START_FAILED
    return 0 if server.started else START_FAILED
