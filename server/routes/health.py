"""Whether the server lives, is ready and what it is.

/live answers as long as the process does; /health and /ready turn 503 when a new request would not
be taken: while starting, while draining and when the engine is dead.
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
async def get_live() -> dict[str, str]:
    """Answer 200 as long as the event loop runs."""
    return {"status": "live"}


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
    if state.draining:
        return "draining"
    if not state.started:
        return "starting"
    return "ready" if state.client.is_healthy else "dead"
