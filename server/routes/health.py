"""Whether the server lives, is ready and what it is.

/live turns 503 when only a new process can help: the engine is dead or hangs. /health, /ready and
/ping turn 503 when a new request would not be taken: while starting and draining, too.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.state import ServerState, state_of
from server.version import VERSION

router = APIRouter(tags=["server"])


@router.get("/health")
async def get_health(request: Request) -> Response:
    """Answer 200 when the engine works and takes requests, else 503."""
    return _condition_response(state_of(request))


@router.get("/ready")
async def get_ready(request: Request) -> Response:
    """Answer 200 when a load balancer may send requests here, else 503."""
    return _condition_response(state_of(request))


@router.get("/live")
async def get_live(request: Request) -> Response:
    """Answer 200 as long as the event loop runs and the engine is well."""
    failure = state_of(request).failure
    return JSONResponse({"status": failure or "live"}, status_code=503 if failure else 200)


@router.get("/ping")
async def get_ping(request: Request) -> Response:
    """Answer as /health does, under the name that some platforms ask for."""
    return _condition_response(state_of(request))


@router.get("/version")
async def get_version() -> dict[str, str]:
    """Return the version of the server."""
    return {"version": VERSION}


@router.get("/")
async def get_root(request: Request) -> dict[str, Any]:
    """Say what this is and where to look."""
    return {
        "name": "slipstream",
        "version": VERSION,
        "models": state_of(request).served_names,
        "docs": "/docs",
    }


def _condition_response(state: ServerState) -> Response:
    condition = _condition(state)
    ready = condition == "ready"
    headers = {} if ready else {"Retry-After": "5"}
    return JSONResponse({"status": condition}, status_code=200 if ready else 503, headers=headers)


def _condition(state: ServerState) -> str:
    """Name the server's condition in one word."""
    if state.failure is not None:
        return state.failure
    if state.draining:
        return "draining"
    if not state.started:
        return "starting"
    return "ready" if state.client.is_healthy else "dead"
