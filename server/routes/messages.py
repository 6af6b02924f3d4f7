"""POST /v1/messages and /v1/messages/count_tokens."""

import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from api_schemas import CountTokensRequest, MessageEvent, MessageRequest, TokenCount
from engine import EngineError
from server.answering import enter, json_response, report_ignored
from server.chat_answer import ChatAnswer
from server.chat_start import plan_chat, start_chat
from server.disconnect import run_while_connected
from server.error_handlers import describe_error
from server.messages.chat_request import WIRE_NAMES, ignored_paths, to_chat_request
from server.messages.errors import api_status, error_type
from server.openapi import describe_body
from server.rendering.messages_api import MessageRenderer
from server.request_body import read_body
from server.request_errors import RequestError
from server.sse import EventStream
from server.state import state_of
from server.wire_names import renamed

logger = logging.getLogger(__name__)

router = APIRouter(tags=["generation"])


@router.post("/messages", openapi_extra=describe_body(MessageRequest))
async def create_message(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, MessageRequest, max_bytes=max_bytes)
    message_id = f"msg_{uuid.uuid4().hex}"
    with renamed(WIRE_NAMES):
        answer = await start_chat(state, to_chat_request(body), message_id)
    renderer = MessageRenderer(
        message_id,
        state.resolve_model(body.model),
        splits_cached=_marks_cache(body.model_dump(exclude_unset=True)),
    )
    leave = enter(request, (message_id,), answer.generation.fail)

    def close() -> None:
        leave()
        answer.generation.close()

    ignored = ignored_paths(body)
    if body.stream:
        headers = report_ignored(body, ignored)
        return EventStream(_frames(answer, renderer), close=close, headers=headers, guarded=False)
    try:
        await run_while_connected(request.receive, _collect(answer, renderer))
    finally:
        close()
    return json_response(renderer.whole(), body, ignored)


@router.post("/messages/count_tokens", openapi_extra=describe_body(CountTokensRequest))
async def count_tokens(request: Request, response: Response) -> TokenCount:
    """Count the tokens of a message's prompt."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, CountTokensRequest, max_bytes=max_bytes)
    state.resolve_model(body.model)
    with renamed(WIRE_NAMES):
        plan = await plan_chat(state, to_chat_request(body))
    response.headers.update(report_ignored(body, ignored_paths(body)))
    return TokenCount(input_tokens=len(plan.prompt.token_ids))


async def _events(
    answer: ChatAnswer, renderer: MessageRenderer
) -> AsyncGenerator[MessageEvent, None]:
    """Yield the events of a message."""
    begun = False
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            # The first chunk carries the role alone; what follows it has the prompt counted.
            for choice in chunk.choices:
                if choice.delta.role is not None:
                    continue
                if not begun:
                    begun = True
                    for event in renderer.opening(answer.usage()):
                        yield event
                for event in renderer.events(choice):
                    yield event
    for event in renderer.closing(answer.usage()):
        yield event


async def _frames(answer: ChatAnswer, renderer: MessageRenderer) -> AsyncGenerator[bytes, None]:
    """Yield the events on the wire; an error is the last of them."""
    try:
        async with aclosing(_events(answer, renderer)) as events:
            async for event in events:
                yield _frame(event)
    except Exception as error:  # the last one who could tell the reader
        if not isinstance(error, EngineError | RequestError):
            logger.exception("a stream failed")
        described = describe_error(error)
        kind = error_type(api_status(described.status))
        yield _frame(renderer.failure(kind, described.error.message))


async def _collect(answer: ChatAnswer, renderer: MessageRenderer) -> None:
    """Read a message to its end."""
    async with aclosing(_events(answer, renderer)) as events:
        async for _ in events:
            pass


def _frame(event: MessageEvent) -> bytes:
    data = event.model_dump_json(exclude_unset=True)
    return f"event: {event.type}\ndata: {data}\n\n".encode()


def _marks_cache(value: Any) -> bool:
    """Return whether a request marks what is to be cached, anywhere."""
    if isinstance(value, dict):
        return "cache_control" in value or any(map(_marks_cache, value.values()))
    return isinstance(value, list) and any(map(_marks_cache, value))
