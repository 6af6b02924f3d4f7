"""What chat and text completions share: sampling fields, stream options, usage, log-probabilities.

Source: https://platform.openai.com/docs/api-reference, the fields `top_k` to `return_token_ids`
after vLLM's extensions. Limits that an operator can change are checked by the server.
"""

from enum import Enum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from api_schemas.base import (
    Boolean,
    Integer,
    Number,
    RequestModel,
    TokenId,
    WireModel,
    field_error,
)
from api_schemas.structured import ConstraintFields

MAX_LOGIT_BIASES = 1024
MAX_STOP_CHARACTERS = 1024


class FinishReason(str, Enum):  # noqa: UP042 - StrEnum changes how pydantic documents it
    """Why a choice ended, as clients read it."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    FUNCTION_CALL = "function_call"


class StreamOptions(RequestModel):
    """Options that only matter to a stream.

    Attributes:
        include_usage: Send one last chunk without choices that carries the usage.
        continuous_usage_stats: Send running counts with every chunk.
        include_obfuscation: Accepted; nothing is padded here.
    """

    include_usage: Boolean = False
    continuous_usage_stats: Boolean = False
    include_obfuscation: Boolean = False


def _as_list(value: Any) -> Any:
    """Turn one stop string into a list of one."""
    return [value] if isinstance(value, str) else value


def _parse_logit_bias(value: Any) -> Any:
    """Turn the decimal keys of a JSON object into token ids."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_LOGIT_BIASES:
        message = f"logit_bias has {len(value)} entries; at most {MAX_LOGIT_BIASES} are allowed."
        raise field_error("logit_bias", message)
    parsed = {}
    for key, bias in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10):
            raise field_error("logit_bias", "logit_bias maps token ids to numbers.")
        parsed[int(key)] = bias
    return parsed


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[
    list[StopString],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
LogitBias = Annotated[
    dict[int, Annotated[Number, Field(ge=-100, le=100)]],
    BeforeValidator(_parse_logit_bias),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]


class SamplingFields(ConstraintFields):
    """The fields that decide how an answer is drawn, when it stops and how it is sent.

    None means that the client left the choice to the server. The meaning of each field stands in
    `api_schemas.support`.
    """

    model: str | None = Field(default=None, max_length=512)
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: LogitBias | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[Integer, Field(ge=1)] = 1
    stop: StopStrings = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1024)] = Field(default_factory=list)
    include_stop_str_in_output: Boolean = False
    ignore_eos: Boolean = False
    min_tokens: Annotated[Integer, Field(ge=0, lt=2**31)] = 0
    skip_special_tokens: Boolean = True
    return_token_ids: Boolean = False
    return_tokens_as_token_ids: Boolean = False
    prompt_logprobs: Annotated[Integer, Field(ge=0)] | None = None
    truncate_prompt_tokens: Annotated[Integer, Field(ge=-1, lt=2**31)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    stream: Boolean = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        """Refuse stream options without a stream, as OpenAI does."""
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "stream_options is only allowed with stream: true.")
        if self.truncate_prompt_tokens == 0:
            message = "truncate_prompt_tokens is at least 1, or -1 for what the context holds."
            raise field_error("truncate_prompt_tokens", message)
        return self

    @property
    def num_answers(self) -> int:
        """Answers to compute for each prompt."""
        return self.n


class PromptTokensDetails(WireModel):
    """How the prompt tokens came about.

    Attributes:
        cached_tokens: Those whose keys and values were found in the cache.
    """

    cached_tokens: int


class CompletionTokensDetails(WireModel):
    """What the answer's tokens were spent on.

    Attributes:
        reasoning_tokens: Those of a separate reasoning text.
    """

    reasoning_tokens: int


class Usage(WireModel):
    """Token counts of a request: each prompt once, all choices, closing tokens included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(WireModel):
    """One alternative at a position.

    Attributes:
        token: The token's text; bytes that are no text become U+FFFD.
        logprob: Its log-probability, in nats, at least -9999.
        bytes: The token's true bytes.
    """

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The chosen token at a position, with the most likely ones.

    Attributes:
        top_logprobs: The most likely tokens, most likely first.
    """

    top_logprobs: list[TopLogprob]


class PromptLogprob(WireModel):
    """What the model says of one token at a place of the prompt.

    Attributes:
        logprob: Its log-probability, in nats, at least -9999.
        rank: Its place among all tokens, 1 for the most likely.
        decoded_token: Its text.
    """

    logprob: float
    rank: int
    decoded_token: str


# One entry per token of the prompt, by token ids; None for the first.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatLogprobs(WireModel):
    """Log-probabilities of a chat choice or chunk."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(WireModel):
    """Log-probabilities of a text choice or chunk: four lists of one entry per token.

    With echo the prompt's tokens come first, and the first of them has no log-probability.

    Attributes:
        text_offset: Where each token begins, in characters of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
