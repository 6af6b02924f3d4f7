"""POST /v1/tokenize, /v1/detokenize and /v1/chat/completions/render, GET /v1/tokenizer_info."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from api_schemas import (
    ChatCompletionRequest,
    DetokenizeRequest,
    DetokenizeResponse,
    RenderResponse,
    TokenizeChatRequest,
    TokenizeResponse,
    TokenizerInfo,
    TokenizeTextRequest,
    parse_tokenize_request,
)
from server.answering import report_ignored
from server.openapi import describe_body
from server.parameters import check_limits, to_request_kwargs, truncate_prompt
from server.request_body import read_body, read_parsed
from server.state import state_of
from server.vocabulary import Vocabulary

router = APIRouter(tags=["tokens"])


@router.post(
    "/tokenize",
    response_model_exclude_none=True,
    openapi_extra=describe_body(TokenizeTextRequest, TokenizeChatRequest),
)
async def tokenize(request: Request, response: Response) -> TokenizeResponse:
    """Return the tokens of a text, or those that a chat completion would begin with."""
    state = state_of(request)
    body = await read_parsed(
        request, parse_tokenize_request, max_bytes=state.settings.server.max_body_bytes
    )
    state.resolve_model(body.model)
    if isinstance(body, TokenizeTextRequest):
        special = body.add_special_tokens
        tokens = await state.encoder.encode_text(body.text, add_special_tokens=special)
    else:
        tokens = truncate_prompt(await state.encoder.encode_chat(body), body, state.limits)
    texts = None
    if body.return_token_strs:
        texts = await asyncio.to_thread(_texts_of, state.setting.vocabulary, tokens)
    response.headers.update(report_ignored(body))
    return TokenizeResponse(
        count=len(tokens),
        max_model_len=state.limits.max_model_tokens,
        tokens=tokens,
        token_strs=texts,
    )


def _texts_of(vocabulary: Vocabulary, tokens: list[int]) -> list[str]:
    return [vocabulary.token_text(token) for token in tokens]


@router.post("/detokenize", openapi_extra=describe_body(DetokenizeRequest))
async def detokenize(request: Request, response: Response) -> DetokenizeResponse:
    """Return the text of tokens, special ones included."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, DetokenizeRequest, max_bytes=max_bytes)
    state.resolve_model(body.model)
    response.headers.update(report_ignored(body))
    return DetokenizeResponse(prompt=await state.encoder.decode(body.tokens))


@router.post("/chat/completions/render", openapi_extra=describe_body(ChatCompletionRequest))
async def render_chat(request: Request, response: Response) -> RenderResponse:
    """Say what a chat completion would give to the model, without an answer."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, ChatCompletionRequest, max_bytes=max_bytes)
    state.resolve_model(body.model)
    check_limits(body, state.limits)
    prompt = await state.encoder.render_chat(body)
    token_ids = truncate_prompt(prompt.token_ids, body, state.limits)
    num_tokens = len(token_ids)
    arguments: dict[str, Any] = to_request_kwargs(
        body, num_prompt_tokens=num_tokens, limits=state.limits
    )
    response.headers.update(report_ignored(body))
    return RenderResponse(
        prompt=prompt.text,
        prompt_token_ids=token_ids,
        count=num_tokens,
        max_model_len=state.limits.max_model_tokens,
        sampling=arguments,
    )


@router.get("/tokenizer_info")
async def get_tokenizer_info(request: Request) -> TokenizerInfo:
    """Describe the tokenizer."""
    return state_of(request).encoder.describe()
