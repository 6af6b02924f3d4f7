"""The application that batches ask: the routes of the outer one, without what surrounds them.

Its requests are those of the batch's owner, as if they had come with that key: they take places in
the queue and share prefixes with the owner's others. They are not counted as clients', have the
time that the batch has and, where the engine knows priorities, go last. Event loop only.
"""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from server.batches.inner_call import Reply, post
from server.batches.runner import Ask, RunnerLimits
from server.batches.service import BatchService
from server.engine_client import EngineClient
from server.error_handlers import describe_error, install_error_handlers
from server.metrics import Metrics
from server.request_errors import AuthenticationError
from server.request_record import RequestRecord, set_current_record
from server.state import ServerState, request_policy

logger = logging.getLogger(__name__)

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
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.server = _inner_state(state, {"priority": BATCH_PRIORITY} if has_priorities else {})
    for router in routers:
        app.include_router(router, prefix="/v1")
    install_error_handlers(app)

    def num_allowed() -> int:
        if state.draining or not state.client.is_healthy:
            return 0
        # Without priorities a batch beside others would keep them waiting; one request is little.
        return 1 if state.num_active > 0 and not has_priorities else settings.num_at_once

    limits = RunnerLimits(max_requests=settings.max_requests, num_allowed=num_allowed)
    folder = Path(settings.folder).expanduser().absolute()
    return BatchService(
        folder, _make_ask(app, state), limits, max_total_bytes=settings.max_total_bytes
    )


def _inner_state(state: ServerState, arguments: dict[str, Any]) -> ServerState:
    """Return a state with the same parts, whose requests have arguments of their own."""
    policy = dataclasses.replace(
        request_policy(state.settings), queue_seconds=None, total_seconds=None
    )
    client = EngineClient(state.manager, arguments, policy)
    state.other_clients.append(client)
    setting = dataclasses.replace(state.setting, client=client)
    return dataclasses.replace(state, client=client, setting=setting, metrics=Metrics())


def _make_ask(app: ASGIApp, state: ServerState) -> Ask:
    """Return what answers a request of an owner, whatever becomes of it."""

    async def ask(owner: str, path: str, body: bytes) -> Reply:
        key = state.settings.keys.named(owner)
        if owner and key is None:
            return _refusal(AuthenticationError())
        record = RequestRecord("", "POST", path, key)
        set_current_record(record)
        try:
            reply = await post(app, key, path, body)
            return dataclasses.replace(reply, was_begun=bool(record.answers))
        except Exception as error:
            logger.exception("a request of a batch failed unexpectedly")
            return _refusal(error)
        finally:
            record.is_over = True
            state.admission.leave(record)

    return ask


def _refusal(error: Exception) -> Reply:
    """Return the answer that a client would get in place of one."""
    described = describe_error(error)
    return Reply(described.status, {}, {"error": described.error.model_dump()})
