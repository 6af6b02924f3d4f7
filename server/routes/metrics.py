"""GET /metrics, in Prometheus' text format."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from server.metrics import CONTENT_TYPE
from server.state import state_of

router = APIRouter(tags=["server"])


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(request: Request) -> Response:
    """Return what the server counts and measures."""
    return Response(state_of(request).metrics.text(), media_type=CONTENT_TYPE)
