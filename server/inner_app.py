"""The application that batches ask: the routes of the outer one, without what surrounds them.

Its requests need no key, are not counted as clients' and, where the engine knows priorities, go
last. Event loop only.
"""

import dataclasses
from pathlib import Path

from fastapi import APIRouter, FastAPI

from server.batches.inner_call import make_call
from server.batches.runner import RunnerLimits
from server.batches.service import BatchService
from server.engine_client import EngineClient
from server.error_handlers import install_error_handlers
from server.state import ServerState

# Lower goes first; clients' requests have 0.
BATCH_PRIORITY = 1_000_000


def make_batches(state: ServerState, routers: tuple[APIRouter, ...]) -> BatchService | None:
    """Return the batches of a server; None if it has no folder for them.

    Args:
        state: The server's state; batches see its parts.
        routers: The routes that batches may ask.
    """
    settings = state.settings.batches
    if not settings.folder:
        return None
    has_priorities = state.manager.resolved_config.scheduler_type == "priority"
    arguments = {"priority": BATCH_PRIORITY} if has_priorities else {}
    client = EngineClient(state.manager, arguments)
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.server = dataclasses.replace(
        state, client=client, setting=dataclasses.replace(state.setting, client=client)
    )
    for router in routers:
        app.include_router(router, prefix="/v1")
    install_error_handlers(app)

    def num_allowed() -> int:
        if state.draining:
            return 0
        # Without priorities a batch beside others would keep them waiting; one request is little.
        return 1 if state.num_active > 0 and not has_priorities else settings.num_at_once

    limits = RunnerLimits(max_requests=settings.max_requests, num_allowed=num_allowed)
    folder = Path(settings.folder).expanduser().absolute()
    return BatchService(folder, make_call(app), limits, max_total_bytes=settings.max_total_bytes)
