"""POST /v1/completions."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from api_schemas import CompletionRequest
from server.admission import num_answers
from server.answering import answer, make_head
from server.generation import start_generation
from server.grammars.sources import constraint_recipe
from server.openapi import describe_body
from server.parameters import check_limits, truncate_prompt, wants_logprobs
from server.prompt_encoding import PromptEncoder
from server.rendering.answer import to_answer_options
from server.rendering.completion import CompletionPrompts, CompletionRenderer
from server.request_body import read_body
from server.state import state_of

router = APIRouter(tags=["generation"])


@router.post("/completions", openapi_extra=describe_body(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts, whole or as a stream of events."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, CompletionRequest, max_bytes=max_bytes)
    head = make_head(state, body, prefix="cmpl")
    check_limits(body, state.limits)
    state.admit(num_answers(body))
    encoded = await state.encoder.encode_prompts(body)
    prompts = [truncate_prompt(prompt, body, state.limits) for prompt in encoded]
    recipe = constraint_recipe(body.constraint())
    echoes = await _echoes(state.encoder, body, prompts) if body.echo else None
    generation = await start_generation(state.setting, body, head.id, prompts, recipe)
    renderer = CompletionRenderer(
        head,
        to_answer_options(body, logprobs=wants_logprobs(body)),
        state.setting.vocabulary,
        CompletionPrompts(prompts, body.num_answers, body.n, echoes),
    )
    return await answer(request, body, generation, renderer)


async def _echoes(
    encoder: PromptEncoder, body: CompletionRequest, prompts: Sequence[list[int]]
) -> list[str]:
    """Return the prompts' texts; what is no whole text is decoded, special tokens included."""
    is_whole = body.truncate_prompt_tokens is None
    return [
        prompt if is_whole and isinstance(prompt, str) else await encoder.decode_prompt(token_ids)
        for prompt, token_ids in zip(body.prompt, prompts, strict=True)
    ]
