"""The Responses API: /v1/responses and what lies below it."""

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Query, Request, Response
from starlette.requests import ClientDisconnect

from api_schemas import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseInputRequest,
    ResponseRequest,
)
from server.answering import json_response, object_response, report_ignored
from server.chat_start import plan_chat
from server.disconnect import run_while_connected
from server.openapi import describe_body
from server.owners import owner_of
from server.request_body import read_body
from server.request_errors import RequestCancelledError, RequestError
from server.responses.chat_request import ignored_paths, to_chat_request, wire_names
from server.responses.creation import read_conversation, start_response
from server.responses.run import EventUse
from server.responses.store import StoredResponse
from server.sse import EventStream
from server.state import state_of
from server.wire_names import renamed

router = APIRouter(tags=["responses"])

ITEM_ORDERS = ("asc", "desc")


@router.post("/responses", openapi_extra=describe_body(ResponseRequest))
async def create_response(request: Request) -> Response:
    """Answer items with items: whole, as a stream of events, or in the background."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, ResponseRequest, max_bytes=max_bytes)
    stored = await start_response(request, state, body)
    ignored = ignored_paths(body)
    if body.stream:
        headers = report_ignored(body, ignored)
        return _stream(stored, stored.run.follow(), headers, ends_run=not body.background)
    if not body.background:
        await _finish(request, stored)
    return json_response(stored.run.whole(), body, ignored)


@router.post("/responses/input_tokens", openapi_extra=describe_body(ResponseInputRequest))
async def count_input_tokens(request: Request, response: Response) -> InputTokens:
    """Count the tokens that the input of a response would have."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, ResponseInputRequest, max_bytes=max_bytes)
    state.resolve_model(body.model)
    conversation = read_conversation(state.responses, owner_of(request), body)
    chat = to_chat_request(body, conversation.chat)
    with renamed(wire_names(conversation.chat)):
        plan = await plan_chat(state, chat)
    response.headers.update(report_ignored(body, ignored_paths(body)))
    return InputTokens(object="response.input_tokens", input_tokens=len(plan.prompt.token_ids))


@router.get("/responses/{response_id}")
async def get_response(
    request: Request, response_id: str, stream: bool = False, starting_after: int | None = None
) -> Response:
    """Return a stored response as it is now, or its events after a number and those to come."""
    stored = state_of(request).responses.get(owner_of(request), response_id)
    if not stream:
        if starting_after is not None:
            message = "starting_after is only allowed with stream=true."
            raise RequestError(message, param="starting_after")
        return object_response(stored.run.whole())
    if stored.run.event_use is not EventUse.KEPT:
        message = "Only responses that were created with background: true can be streamed again."
        raise RequestError(message, param="stream")
    first = 0 if starting_after is None else max(starting_after + 1, 0)
    return _stream(stored, stored.run.follow(first), {}, ends_run=False)


@router.delete("/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> DeletedResponse:
    """Forget a stored response; one that runs is cancelled."""
    stored = state_of(request).responses.delete(owner_of(request), response_id)
    stored.run.fail(RequestCancelledError())
    return DeletedResponse(id=response_id)


@router.post("/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """End a response; one that has ended stays as it is."""
    run = state_of(request).responses.get(owner_of(request), response_id).run
    run.fail(RequestCancelledError())
    await run.wait()
    return object_response(run.whole())


@router.get("/responses/{response_id}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: int = Query(default=20, ge=1, le=100),
    order: str = "desc",
    after: str | None = None,
) -> InputItemList:
    """List the items that a response answers, a page at a time."""
    if order not in ITEM_ORDERS:
        raise RequestError("order is asc or desc.", param="order")
    items = list(state_of(request).responses.get(owner_of(request), response_id).inputs)
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise RequestError("after is no item of this response.", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(items) > len(page),
    )


async def _finish(request: Request, stored: StoredResponse) -> None:
    """Wait for a response as long as its client does.

    Raises:
        EngineError, RequestError: It failed, or was cancelled.
        ClientDisconnect: The client left; it has been cancelled.
    """
    try:
        await run_while_connected(request.receive, stored.run.wait())
    except ClientDisconnect:
        stored.run.fail(RequestCancelledError())
        raise
    if stored.run.error is not None:
        raise stored.run.error


def _stream(
    stored: StoredResponse,
    frames: AsyncGenerator[bytes, None],
    headers: dict[str, str],
    *,
    ends_run: bool,
) -> Response:
    """Return the events of a response; with its reader it may end or go on."""

    def close() -> None:
        if ends_run:
            stored.run.fail(RequestCancelledError())
            stored.run.forget_events()

    return EventStream(frames, close=close, headers=headers, guarded=False)
