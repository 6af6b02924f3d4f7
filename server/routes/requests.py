"""POST /v1/requests/{id}/cancel: ends a request that somebody else is reading."""

from fastapi import APIRouter, Request

from api_schemas import CancelledRequests
from server.owners import owned_label
from server.request_errors import RequestCancelledError, RequestError
from server.state import state_of

router = APIRouter(tags=["requests"])


@router.post("/requests/{request_id}/cancel")
async def cancel_request(request: Request, request_id: str) -> CancelledRequests:
    """End the running requests of an id: that of the answer, or the X-Request-Id it came with."""
    state = state_of(request)
    error = RequestCancelledError()
    # A label of another key has its name in it, behind a character that no answer's id has.
    count = 0 if "\0" in request_id else state.running.end(request_id, error)
    count += state.running.end(owned_label(request, request_id), error)
    if count == 0:
        message = "No request of this id is running."
        raise RequestError(message, param="request_id", code="request_not_found", status=404)
    return CancelledRequests(id=request_id, num_cancelled=count)
