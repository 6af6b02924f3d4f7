"""From wire names to the arguments of `add_request`, written once for both endpoints.

Checks what depends on the server's limits or on the length of the prompt; plain ranges were
checked by the schemas, token ids are by the engine. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_schemas import ChatCompletionRequest, CompletionRequest, SamplingFields
from server.request_errors import ContextLengthError, RequestError
from server.text_stream import TextOptions

DEFAULT_COMPLETION_TOKENS = 16
OPENAI_DEFAULTS: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask for, and what it gets when it doesn't say.

    Attributes:
        max_model_tokens: Prompt and answer together, in tokens.
        max_choices: Largest n.
        max_prompts: Most prompts in one request.
        max_top_logprobs: Most alternatives per token.
        max_stop_strings: Most stop strings.
        max_messages: Most messages in one request.
        default_stops: Stop strings of every answer, from generation_config.json.
        sampling_defaults: `add_request` arguments used where the request is silent; what is
            missing here too is the engine's to decide, from generation_config.json.
    """

    max_model_tokens: int
    max_choices: int = 16
    max_prompts: int = 128
    max_top_logprobs: int = 20
    max_stop_strings: int = 16
    max_messages: int = 4096
    default_stops: tuple[str, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)


def sampling_defaults(policy: str, generation_config: Any) -> dict[str, Any]:
    """Return the defaults for requests that leave sampling open.

    Args:
        policy: "openai" or "model", the setting `model.sampling_defaults`.
        generation_config: The model's. It rules under "model" as far as it says anything: one
            that names neither do_sample nor a temperature leaves OpenAI's temperature of 1, and
            one without a top_k leaves all tokens, where `generate` would keep 50.
    """
    if policy == "openai":
        return dict(OPENAI_DEFAULTS)
    defaults: dict[str, Any] = {}
    if getattr(generation_config, "top_k", None) is None:
        defaults["top_k"] = 0
    if getattr(generation_config, "do_sample", None) is None:
        temperature = getattr(generation_config, "temperature", None)
        defaults["temperature"] = 1.0 if temperature is None else float(temperature)
    return defaults


def default_stops(generation_config: Any) -> tuple[str, ...]:
    """Return the stop strings that a model's generation configuration names."""
    named = getattr(generation_config, "stop_strings", None) or ()
    return (named,) if isinstance(named, str) else tuple(named)


def check_limits(body: SamplingFields, limits: RequestLimits) -> None:
    """Refuse what exceeds the operator's limits.

    Raises:
        RequestError: Names the field and the limit.
    """
    _check_most("n", body.n, limits.max_choices)
    _check_most("best_of", body.num_answers, limits.max_choices)
    _check_most("prompt_logprobs", body.prompt_logprobs or 0, limits.max_top_logprobs)
    if len(body.stop) > limits.max_stop_strings:
        message = f"stop has at most {limits.max_stop_strings} entries on this server."
        raise RequestError(message, param="stop")
    name, asked = _asked_logprobs(body)
    _check_most(name, asked or 0, limits.max_top_logprobs)
    if isinstance(body, CompletionRequest) and len(body.prompt) > limits.max_prompts:
        message = f"prompt has at most {limits.max_prompts} entries on this server."
        raise RequestError(message, param="prompt")
    if isinstance(body, ChatCompletionRequest) and len(body.messages) > limits.max_messages:
        message = f"messages has at most {limits.max_messages} entries on this server."
        raise RequestError(message, param="messages")


def _check_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise RequestError(f"{name} is at most {most} on this server.", param=name)


def truncate_prompt(prompt: list[int], body: SamplingFields, limits: RequestLimits) -> list[int]:
    """Return what the request wants to keep of a prompt; all of it unless it says so."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return prompt
    if keep == -1:
        asked = _asked_tokens(body, 1) or 1
        keep = max(limits.max_model_tokens - max(asked, 1), 1)
    return prompt[-keep:] if body.truncation_side == "left" else prompt[:keep]


def to_request_kwargs(
    body: SamplingFields, *, num_prompt_tokens: int, limits: RequestLimits
) -> dict[str, Any]:
    """Return the keyword arguments of `add_request` for one prompt and all its choices.

    Args:
        body: The request.
        num_prompt_tokens: Length of the prompt, in tokens.
        limits: What the server allows.

    Raises:
        RequestError: The lengths don't fit together.
    """
    asked = {
        "max_new_tokens": _max_new_tokens(body, num_prompt_tokens, limits),
        **_sampling_arguments(body),
        "seed": body.seed,
        "logit_bias": body.logit_bias or None,
        "stop_token_ids": body.stop_token_ids or None,
        "min_new_tokens": body.min_tokens or None,
        "ignore_eos": body.ignore_eos or None,
        "top_logprobs": _reported_logprobs(body),
        "prompt_logprobs": asked_prompt_logprobs(body),
    }
    arguments = {name: value for name, value in asked.items() if value is not None}
    return {**limits.sampling_defaults, **arguments}


def to_text_options(body: SamplingFields, limits: RequestLimits) -> TextOptions:
    """Return how the answer's text is made."""
    return TextOptions(
        stops=(*body.stop, *limits.default_stops),
        include_stop=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
        min_tokens=body.min_tokens,
    )


def wants_logprobs(body: SamplingFields) -> bool:
    """Return whether the answer carries log-probabilities."""
    return _asked_logprobs(body)[1] is not None


def asked_prompt_logprobs(body: SamplingFields) -> int | None:
    """Return how many alternatives are wanted for each token of the prompt; None for no report."""
    asked = [body.prompt_logprobs]
    if isinstance(body, CompletionRequest) and body.echo:
        asked.append(body.logprobs)
    return max((count for count in asked if count is not None), default=None)


def _reported_logprobs(body: SamplingFields) -> int | None:
    """Return how many alternatives the engine reports; the best answers are told by their own."""
    asked = _asked_logprobs(body)[1]
    return 0 if asked is None and body.num_answers > body.n else asked


def _sampling_arguments(body: SamplingFields) -> dict[str, Any]:
    """Return the arguments that shape the distribution."""
    arguments = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": None if body.top_k is None else max(body.top_k, 0),
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
    }
    if body.top_p == 0:
        # The smallest set that reaches probability 0 is the most likely token.
        arguments.update(temperature=0.0, top_p=1.0)
    return arguments


def _asked_logprobs(body: SamplingFields) -> tuple[str, int | None]:
    """Return the field that asks for alternatives and how many; None asks for nothing."""
    if isinstance(body, ChatCompletionRequest):
        return "top_logprobs", (body.top_logprobs or 0) if body.logprobs else None
    if isinstance(body, CompletionRequest):
        return "logprobs", body.logprobs
    return "logprobs", None


def _max_new_tokens(
    body: SamplingFields, num_prompt_tokens: int, limits: RequestLimits
) -> int | None:
    """Return the longest answer; None leaves it to the generation configuration."""
    param = "messages" if isinstance(body, ChatCompletionRequest) else "prompt"
    room = limits.max_model_tokens - num_prompt_tokens
    asked = _asked_tokens(body, room)
    if room < 1 or (asked is not None and asked > room):
        raise ContextLengthError(
            num_prompt_tokens=num_prompt_tokens,
            num_new_tokens=asked if room >= 1 else None,
            max_tokens=limits.max_model_tokens,
            param=param,
        )
    if body.min_tokens > (room if asked is None else asked):
        message = f"min_tokens is {body.min_tokens}, more than the longest answer allowed."
        raise RequestError(message, param="min_tokens")
    return asked


def _asked_tokens(body: SamplingFields, room: int) -> int | None:
    """Return how many tokens the request asks for, with its endpoint's default."""
    if isinstance(body, ChatCompletionRequest):
        asked = body.max_completion_tokens
        asked = body.max_tokens if asked is None else asked
        return room if asked == -1 else asked
    if isinstance(body, CompletionRequest) and body.max_tokens is not None:
        return body.max_tokens
    return min(DEFAULT_COMPLETION_TOKENS, room)
