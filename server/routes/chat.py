"""POST /v1/chat/completions."""

from fastapi import APIRouter, Request, Response

from api_schemas import ChatCompletionRequest
from server.answering import answer
from server.chat_start import start_chat
from server.openapi import describe_body
from server.request_body import read_body
from server.state import state_of

router = APIRouter(tags=["generation"])


@router.post("/chat/completions", openapi_extra=describe_body(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, ChatCompletionRequest, max_bytes=max_bytes)
    chat = await start_chat(state, body)
    return await answer(request, body, chat.generation, chat.renderer)
