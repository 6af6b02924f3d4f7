"""The application: routes, middleware and the life of the engine behind them.

`create_app` wires everything and keeps nothing outside the application object. The lifespan starts
the engine before the first request and stops it after the last.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from engine import EngineStoppingError
from server.engine_client import Manager
from server.error_handlers import install_error_handlers
from server.inner_app import make_batches
from server.layers import outer_layers
from server.middleware import DrainGate
from server.openapi import install_openapi
from server.request_log import log_request
from server.routes import (
    batches,
    chat,
    completions,
    embeddings,
    files,
    health,
    messages,
    metrics,
    models,
    requests,
    responses,
    tokenization,
)
from server.settings import Settings
from server.state import ServerState, build_state
from server.tracking import Observer
from server.version import VERSION

logger = logging.getLogger(__name__)

ROUTES = (
    tokenization,
    chat,
    completions,
    messages,
    embeddings,
    responses,
    files,
    batches,
    models,
    requests,
)
BATCH_ROUTES = (chat.router, completions.router, embeddings.router, responses.router)
# How long the engine thread may take to end its step, in seconds.
STOP_SECONDS = 10.0


def create_app(settings: Settings, model: Any, manager: Manager, tokenizer: Any) -> FastAPI:
    """Return the application that serves one model.

    Args:
        settings: What the operator set.
        model: An `engine.PagedModel`.
        manager: Its `ContinuousBatchingManager`, constructed and not started.
        tokenizer: Its transformers tokenizer.
    """
    state = build_state(settings, model, manager, tokenizer)
    app = FastAPI(
        title="Slipstream", version=VERSION, lifespan=_make_lifespan(state), redirect_slashes=False
    )
    app.state.server = state
    state.batches = make_batches(state, BATCH_ROUTES)
    for prefix, in_schema in (("/v1", True), ("", False)):
        for module in ROUTES:
            app.include_router(module.router, prefix=prefix, include_in_schema=in_schema)
    app.include_router(health.router)
    app.include_router(health.router, prefix="/v1", include_in_schema=False)
    # Paths lose the slash at their end before they are routed.
    app.add_api_route("/v1", health.get_root, include_in_schema=False)
    if settings.telemetry.metrics:
        app.include_router(metrics.router)
        state.metrics.watch(state)
    install_error_handlers(app)
    install_openapi(app)
    # The one added last is the outermost.
    app.add_middleware(DrainGate)
    for layer, options in outer_layers(settings, _observers(state)):
        app.add_middleware(layer, **options)
    return app


def _observers(state: ServerState) -> list[Observer]:
    """Return who is told of each request that has ended."""
    telemetry = state.settings.telemetry
    observers: list[Observer] = []
    if telemetry.metrics:
        observers.append(state.metrics.observe)
    if telemetry.log_requests:
        observers.append(log_request)
    if state.tracing is not None:
        observers.append(state.tracing.observe)
    return observers


def _make_lifespan(state: ServerState) -> Any:
    """Return the context in which the application runs."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # The library would cut every open stream at SIGTERM; `server.serving` drains them.
        AppStatus.enable_automatic_graceful_drain = False
        await asyncio.to_thread(_start_engine, state)
        await _generate_first_token(state)
        if state.batches is not None:
            await state.batches.start()
        state.started = True
        try:
            yield
        finally:
            state.started = False
            if state.batches is not None:
                await state.batches.close()
            # Whoever waited for an answer has been told; nothing is worth finishing.
            await asyncio.to_thread(
                state.manager.stop,
                block=state.failure is None,
                timeout=STOP_SECONDS,
                hard_stop=True,
            )
            await state.responses.end(EngineStoppingError("the server is shutting down"))
            state.encoder.close()
            if state.tracing is not None:
                await asyncio.to_thread(state.tracing.close)
            state.setting.grammars.close()

    return lifespan


def _start_engine(state: ServerState) -> None:
    """Run what the first request would otherwise wait for, then start the engine thread."""
    state.manager.warmup()
    state.manager.start()
    logger.info("serving %s", ", ".join(state.served_names))


async def _generate_first_token(state: ServerState) -> None:
    """Let the engine answer a request before anybody else's is taken.

    Raises:
        EngineError: It cannot, and neither could it answer a client.
    """
    arguments = {"max_new_tokens": 1, "temperature": 0.0}
    (stream,) = state.client.submit("first-token", [0], arguments)
    async for _ in stream:
        pass
