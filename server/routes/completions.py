"""POST /v1/completions."""

from fastapi import APIRouter, Request, Response

from api_schemas import CompletionRequest
from server.answering import answer, make_head
from server.generation import start_generation
from server.grammars.sources import constraint_recipe
from server.openapi import describe_body
from server.parameters import check_limits, wants_logprobs
from server.prompt_encoding import PromptEncoder
from server.rendering.answer import to_answer_options
from server.rendering.completion import CompletionRenderer
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
    prompts = await state.encoder.encode_prompts(body)
    recipe = constraint_recipe(body.constraint())
    generation = await start_generation(state.setting, body, head.id, prompts, recipe)
    renderer = CompletionRenderer(
        head,
        to_answer_options(body, logprobs=wants_logprobs(body)),
        state.setting.vocabulary,
        prompts=prompts,
        num_choices=body.n,
        echoes=_echoes(state.encoder, body) if body.echo else None,
    )
    return await answer(request, body, generation, renderer)


def _echoes(encoder: PromptEncoder, body: CompletionRequest) -> list[str]:
    """Return the prompts' texts; token lists are decoded, special tokens included."""
    return [
        prompt if isinstance(prompt, str) else encoder.decode_prompt(prompt)
        for prompt in body.prompt
    ]
