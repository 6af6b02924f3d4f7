"""POST /v1/embeddings."""

import uuid

from fastapi import APIRouter, Request, Response

from api_schemas import Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from server.answering import json_response, running_as
from server.disconnect import run_while_connected
from server.embedding import NUM_AT_ONCE, EmbeddingJob, VectorOptions, to_base64
from server.openapi import describe_body
from server.request_body import read_body
from server.request_errors import ContextLengthError, RequestError
from server.state import ServerState, state_of
from server.wire_names import renamed

router = APIRouter(tags=["generation"])

MAX_INPUTS = 2048


@router.post("/embeddings", openapi_extra=describe_body(EmbeddingRequest))
async def create_embeddings(request: Request) -> Response:
    """Return a vector for each text."""
    state = state_of(request)
    max_bytes = state.settings.server.max_body_bytes
    body = await read_body(request, EmbeddingRequest, max_bytes=max_bytes)
    model = state.resolve_model(body.model)
    _check(state, body)
    num_at_once = state.admit(min(len(body.input), NUM_AT_ONCE), in_turns=True)
    with renamed({"prompt": "input"}):
        prompts = await state.encoder.encode_inputs(
            body.input, add_special_tokens=body.add_special_tokens
        )
        for prompt in prompts:
            _check_length(prompt, state.limits.max_model_tokens)
        options = VectorOptions(state.settings.model.pooling, body.dimensions)
        name = f"embd-{uuid.uuid4().hex}"
        job = EmbeddingJob(state.client, name, prompts, options, num_at_once)
        with running_as(request, (), job.fail):
            vectors = await run_while_connected(request.receive, job.run())
    as_text = body.encoding_format == "base64"
    num_tokens = sum(map(len, prompts))
    answer = EmbeddingList(
        object="list",
        data=[
            Embedding(
                object="embedding", index=index, embedding=to_base64(vector) if as_text else vector
            )
            for index, vector in enumerate(vectors)
        ],
        model=model,
        usage=EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
    )
    return json_response(answer, body)


def _check(state: ServerState, body: EmbeddingRequest) -> None:
    """Refuse what this server cannot make."""
    size = state.vector_size
    if state.settings.model.pooling == "none" or size is None:
        reason = "this model shows no hidden states" if size is None else "model.pooling is none"
        message = f"This server makes no embeddings: {reason}."
        raise RequestError(message, param="model", code="unsupported_endpoint")
    if len(body.input) > MAX_INPUTS:
        raise RequestError(f"input has at most {MAX_INPUTS} entries.", param="input")
    if body.dimensions is not None and body.dimensions > size:
        message = f"dimensions is at most {size} with this model."
        raise RequestError(message, param="dimensions")


def _check_length(prompt: list[int], max_tokens: int) -> None:
    """Refuse a prompt that leaves no room for the token which ends the request."""
    if len(prompt) >= max_tokens:
        raise ContextLengthError(
            num_prompt_tokens=len(prompt),
            num_new_tokens=1 if len(prompt) == max_tokens else None,
            max_tokens=max_tokens,
            param="prompt",
        )
