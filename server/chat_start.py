"""Starts a chat completion, for its own route and those that speak another protocol.

Event loop only.
"""

from api_schemas import ChatCompletionRequest
from server.admission import num_answers
from server.answer_plan import AnswerPlan, plan_answer
from server.answering import make_head
from server.chat_answer import ChatAnswer
from server.generation import start_generation
from server.parameters import check_limits, truncate_prompt, wants_logprobs
from server.prompt_encoding import RenderedChat
from server.rendering.answer import to_answer_options
from server.rendering.chat import ChatRenderer
from server.state import ServerState


async def start_chat(
    state: ServerState, body: ChatCompletionRequest, request_id: str | None = None
) -> ChatAnswer:
    """Check, admit, render and submit a chat completion.

    Args:
        state: The server.
        body: The chat completion.
        request_id: Unique; names the generation. None names it as its chunks are.

    Raises:
        RequestError, EngineError: It is refused; nothing is left running.
    """
    head = make_head(state, body, prefix="chatcmpl")
    check_limits(body, state.limits)
    state.admit(num_answers(body))
    plan = await plan_chat(state, body)
    options = to_answer_options(body, logprobs=wants_logprobs(body))
    prompt = plan.prompt.token_ids
    name = request_id or head.id
    generation = await start_generation(state.setting, body, name, [prompt], plan.recipe)
    renderer = ChatRenderer(head, options, state.setting.vocabulary, plan, generation.stop)
    return ChatAnswer(generation, renderer, len(prompt))


async def plan_chat(state: ServerState, body: ChatCompletionRequest) -> AnswerPlan:
    """Render a chat completion and decide what is to become of its answer.

    Raises:
        RequestError: The template, or what is to be followed, is refused.
    """
    prompt = await state.encoder.render_chat(body)
    kept = truncate_prompt(prompt.token_ids, body, state.limits)
    return plan_answer(state.formats, body, RenderedChat(prompt.text, kept))
