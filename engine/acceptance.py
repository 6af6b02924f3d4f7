"""Takes what a step has drawn into a request: tokens, what is reported of them, the end.

Engine thread only, called by `Scheduler.update`. What a token means for its request is decided
here; what a request's end means for others is the scheduler's business.
"""

from engine.batch import SampledTokens
from engine.errors import RequestFailedError
from engine.requests import FinishReason, RequestState, RequestStatus


def accept_token(request: RequestState, sampled: SampledTokens, row: int, now: float) -> None:
    """Append a drawn token; end the request if it was the last.

    Args:
        request: Whose token it is.
        sampled: What the step has drawn.
        row: The request's place in it.
        now: When (`time.perf_counter`).
    """
    request.status = RequestStatus.DECODING
    request.generated_tokens.append(sampled.token_ids[row])
    if sampled.logprobs:
        request.logprobs.append(sampled.logprobs[row])
    token_logprobs = sampled.token_logprobs[row] if sampled.token_logprobs else None
    if token_logprobs is not None:
        request.token_logprobs.append(token_logprobs)
    if request.timestamps is not None:
        request.timestamps.append(now)
    _end_if_done(request, now)


def accept_prompt_logprobs(request: RequestState, sampled: SampledTokens) -> None:
    """Append what the step says of the request's prompt tokens."""
    if request.prompt_logprobs is not None:
        request.prompt_logprobs += sampled.prompt_logprobs.get(request.request_id, ())


def accept_pooled(request: RequestState, sampled: SampledTokens) -> None:
    """Add what the step says of the prompt's hidden states."""
    rows = sampled.pooled.get(request.request_id)
    if request.pooling is not None and rows is not None:
        request.pooling.add(rows)


def _end_if_done(request: RequestState, now: float) -> None:
    params, num_generated = request.params, len(request.generated_tokens)
    token_id = request.generated_tokens[-1]
    if token_id in params.eos_token_ids or token_id in params.stop_token_ids:
        request.stop_reason = token_id if token_id in params.stop_token_ids else None
        request.finish(RequestStatus.FINISHED, FinishReason.STOP)
        return
    if params.stop_strings is not None and num_generated >= params.min_new_tokens:
        _end_at_stop_string(request)
        if request.is_finished():
            return
    if num_generated >= params.max_new_tokens or now - request.created_time > params.max_seconds:
        request.finish(RequestStatus.FINISHED, FinishReason.LENGTH)


def _end_at_stop_string(request: RequestState) -> None:
    """End the request if its last token completes a stop string, or cannot be read."""
    assert request.params.stop_strings is not None
    try:
        found = request.params.stop_strings.find(request.prompt_ids, request.generated_tokens)
    except Exception as cause:  # noqa: BLE001 - the tokenizer is the caller's
        error = RequestFailedError(f"the request's tokens cannot be turned into text: {cause}")
        error.__cause__ = cause
        request.finish(RequestStatus.FAILED, FinishReason.ERROR, error)
        return
    if found is not None:
        request.stop_reason = found
        request.finish(RequestStatus.FINISHED, FinishReason.STOP)
