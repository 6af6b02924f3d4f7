"""POST /v1/chat/completions."""

from fastapi import APIRouter, Request, Response

from api_schemas import ChatCompletionRequest
from server.answer_plan import plan_answer
from server.answering import answer, make_head
from server.generation import start_generation
from server.openapi import describe_body
from server.parameters import check_limits, truncate_prompt, wants_logprobs
from server.prompt_encoding import RenderedChat
from server.rendering.answer import to_answer_options
from server.rendering.chat import ChatRenderer
from server.request_body import read_body
from server.state import state_of

router = APIRouter(tags=["generation"])


@router.post("/chat/completions", openapi_extra=describe_body(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, ChatCompletionRequest, max_bytes=max_bytes)
    head = make_head(state, body, prefix="chatcmpl")
    check_limits(body, state.limits)
    state.admit(body)
    prompt = await state.encoder.render_chat(body)
    kept = truncate_prompt(prompt.token_ids, body, state.limits)
    plan = plan_answer(state.formats, body, RenderedChat(prompt.text, kept))
    options = to_answer_options(body, logprobs=wants_logprobs(body))
    renderer = ChatRenderer(head, options, state.setting.vocabulary, plan)
    prompts = [plan.prompt.token_ids]
    generation = await start_generation(state.setting, body, head.id, prompts, plan.recipe)
    return await answer(request, body, generation, renderer)
