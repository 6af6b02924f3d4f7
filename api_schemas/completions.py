"""Text completions: the request, and the object that is both the answer and each chunk.

Source: https://platform.openai.com/docs/api-reference/completions. Data only.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from api_schemas.base import Boolean, Integer, WireModel, field_error
from api_schemas.field_support import FieldSupport
from api_schemas.generation import (
    CompletionLogprobs,
    FinishReason,
    PromptLogprobs,
    SamplingFields,
    Usage,
)
from api_schemas.support import COMPLETION_FIELDS

Prompts = list[str] | list[list[int]]
PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


def _is_token_list(value: Any) -> bool:
    """Return whether a value is a list of integers; booleans are none."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def parse_prompts(value: Any, *, name: str) -> Prompts:
    """Bring the four forms of a prompt into two: a list of texts or a list of token lists.

    Args:
        value: From the wire.
        name: The field, for what is said about it.

    Raises:
        PydanticCustomError: It has another form, or is empty.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise field_error(name, f"{name} is a text, a list of texts or of token ids.")
    if not value:
        raise field_error(name, f"{name} is empty.")
    if all(isinstance(item, str) for item in value):
        return value
    token_lists = [value] if _is_token_list(value) else value
    for position, item in enumerate(token_lists):
        if not _is_token_list(item):
            raise field_error(name, f"{name} is a text, a list of texts or of token ids.")
        if not item:
            message = f"{name} has an empty list of token ids."
            raise field_error(f"{name}.{position}", message)
    return token_lists


def _parse_prompt(value: Any) -> Prompts:
    return parse_prompts(value, name="prompt")


class CompletionRequest(SamplingFields):
    """A request for the continuation of one or more prompts.

    Attributes:
        prompt: One entry per prompt, all texts or all token lists.
        max_tokens: None takes the default of 16; 0 is allowed with echo.
        echo: Put the prompt's text before the completion.
        logprobs: Alternatives per token; 0 reports the chosen one only, None nothing.
        best_of: Answers of which the n most likely ones are given, by the mean over their tokens.
        add_special_tokens: Whether the tokenizer adds its own (such as BOS) to a text.
    """

    support: ClassVar[tuple[FieldSupport, ...]] = COMPLETION_FIELDS

    prompt: Annotated[
        Prompts,
        PlainValidator(_parse_prompt),
        WithJsonSchema(PROMPT_SCHEMA),
    ]
    max_tokens: Integer | None = None
    echo: Boolean = False
    logprobs: Annotated[Integer, Field(ge=0)] | None = None
    best_of: Annotated[Integer, Field(ge=1)] | None = None
    add_special_tokens: Boolean = True

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        """Refuse combinations that have no answer here."""
        if self.max_tokens is not None and self.max_tokens < (0 if self.echo else 1):
            message = "max_tokens is at least 1, or 0 together with echo."
            raise field_error("max_tokens", message)
        if self.best_of is not None and self.best_of < self.n:
            raise field_error("best_of", "best_of is at least n.")
        if self.num_answers > self.n and self.stream:
            raise field_error("best_of", "best_of above n cannot be streamed.")
        return self

    @property
    def num_answers(self) -> int:
        """Answers to compute for each prompt."""
        return self.n if self.best_of is None else self.best_of


class CompletionChoice(WireModel):
    """One completion of one prompt, or a piece of it.

    Attributes:
        index: prompt number * n + number of the choice.
        stop_reason: The stop string or stop token id that ended it.
        token_ids: The tokens of this piece, when asked for.
        prompt_token_ids: The prompt's tokens, when asked for; where the choice begins.
        prompt_logprobs: What the model says of them, when asked for; where the choice begins.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(WireModel):
    """The answer to a `CompletionRequest`, or one chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    service_tier: str | None = None
    choices: list[CompletionChoice]
    usage: Usage | None = None
