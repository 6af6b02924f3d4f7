"""Starts a response: from its request to a run, stored or not. Event loop only."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from api_schemas import ResponseInputRequest, ResponseRequest
from server.answering import enter
from server.chat_start import start_chat
from server.owners import owner_of
from server.rendering.response import ResponseRenderer
from server.request_errors import RequestError
from server.request_record import current_record
from server.responses.chat_request import to_chat_request, wire_names
from server.responses.items import ChatInput, Item, complete_items, to_chat
from server.responses.run import EventUse, ResponseRun
from server.responses.store import ResponseStore, StoredResponse
from server.state import ServerState
from server.wire_names import renamed


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a response answers.

    Attributes:
        items: All items, those of earlier responses first.
        chat: The same as messages.
    """

    items: list[Item]
    chat: ChatInput


def read_conversation(store: ResponseStore, owner: str, body: ResponseInputRequest) -> Conversation:
    """Put together what came before and what comes now.

    Args:
        store: Where earlier responses are.
        owner: Whose may be gone on from.
        body: The request.

    Raises:
        RequestError: An item is wrong, or what it refers to is not stored here.
    """
    history: list[Item] = []
    if body.previous_response_id is not None:
        previous = store.get(owner, body.previous_response_id, param="previous_response_id")
        if not previous.run.has_ended:
            message = "The previous response has not ended yet."
            raise RequestError(message, param="previous_response_id", code="response_in_progress")
        history = [*previous.inputs, *previous.outputs()]
    items = complete_items(body.input, lambda name: store.find_item(owner, name))
    chat = to_chat(body.instructions, history, items)
    if not chat.messages:
        raise RequestError("input has no message.", param="input")
    return Conversation([*history, *items], chat)


async def start_response(
    request: Request, state: ServerState, body: ResponseRequest
) -> StoredResponse:
    """Start a response and keep it if it is to be kept.

    Raises:
        RequestError, EngineError: It is refused; nothing is left running.
    """
    if body.background and not state.responses.keeps_any:
        message = "background is not supported: this server stores no responses."
        raise RequestError(message, param="background")
    conversation = read_conversation(state.responses, owner_of(request), body)
    chat_body = to_chat_request(body, conversation.chat)
    response_id = f"resp_{uuid.uuid4().hex}"
    stores = body.store and state.responses.keeps_any
    with renamed(wire_names(conversation.chat)):
        answer = await start_chat(state, chat_body, response_id)
    head = _head(state, body, response_id, stores=stores)
    renderer = ResponseRenderer(head, background=body.background)
    events = EventUse.PASSED_ON if body.stream else EventUse.NONE
    run = ResponseRun(answer, renderer, EventUse.KEPT if body.background else events)
    stored = StoredResponse(response_id, owner_of(request), run, conversation.items)
    if stores:
        state.responses.add(stored)
    run.start(on_end=_note_running(request, state, stored))
    return stored


def _note_running(
    request: Request, state: ServerState, stored: StoredResponse
) -> Callable[[], None]:
    """Let the run be found by its names; the request is over when both have ended."""
    leave = enter(request, (stored.response_id,), stored.run.fail)
    record = current_record()
    if record is not None:
        record.hold()

    def end() -> None:
        leave()
        if record is not None:
            record.release()
        state.responses.note_end(stored)

    return end


def _head(
    state: ServerState, body: ResponseRequest, response_id: str, *, stores: bool
) -> dict[str, Any]:
    """Return the fields of the response that its request decides."""
    return {
        "id": response_id,
        "created_at": int(time.time()),
        "background": body.background,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata,
        "model": state.resolve_model(body.model),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "service_tier": body.service_tier or "default",
        "store": stores,
        "temperature": body.temperature,
        "text": {"format": body.text.format or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
