"""Chat completions: messages, the request, the answer and the chunks of its stream.

Source: https://platform.openai.com/docs/api-reference/chat. Data only.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from api_schemas.base import Boolean, Integer, RequestModel, WireModel, field_error
from api_schemas.field_support import FieldSupport
from api_schemas.generation import (
    ChatLogprobs,
    FinishReason,
    PromptLogprobs,
    SamplingFields,
    Usage,
)
from api_schemas.json_text import load_json_text
from api_schemas.support import CHAT_FIELDS
from api_schemas.tools import CalledFunction, MadeToolCall, ToolFields

# These would replace what the request and the server say by other means.
RESERVED_TEMPLATE_NAMES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
MAX_TEMPLATE_NAMES = 64


class FunctionCall(RequestModel):
    """The function that an earlier answer called.

    Attributes:
        arguments: A JSON text, as the API gives it out; an object is taken too.
    """

    name: str
    arguments: str | dict[str, Any] = "{}"

    def parsed_arguments(self) -> Any:
        """Return the arguments as an object for the template, or the text if it is no JSON."""
        if not isinstance(self.arguments, str):
            return self.arguments
        try:
            parsed = load_json_text(self.arguments or "{}")
        except (ValueError, RecursionError):
            return self.arguments
        return parsed if isinstance(parsed, dict) else self.arguments


class ToolCall(RequestModel):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


def _parse_content(value: Any) -> Any:
    """Join the text parts of a message; other kinds of parts are refused by name."""
    if not isinstance(value, list):
        return value
    return "".join(_part_text(part, position) for position, part in enumerate(value))


def _part_text(part: Any, position: int) -> str:
    """Return the text of one content part."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise field_error(f"content.{position}", "a content part is an object with a type.")
    if kind not in ("text", "input_text", "output_text", "refusal"):
        message = f"content parts of type {kind[:64]!r} are not supported: this is a text model."
        raise field_error(f"content.{position}.type", message)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise field_error(f"content.{position}.text", f"a {kind} part needs a text.")
    return text


MessageContent = Annotated[
    str,
    BeforeValidator(_parse_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]


class ChatMessage(RequestModel):
    """One message of the conversation so far.

    Attributes:
        content: Its text; only an assistant may leave it out.
        reasoning: The reasoning that came before an assistant's answer, also `reasoning_content`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: MessageContent | None = None
    name: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    function_call: FunctionCall | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        """Refuse a message that says nothing, unless an assistant's."""
        if self.content is None and self.role not in ("assistant", "function"):
            raise field_error("content", f"a message of role {self.role!r} needs content.")
        return self


class ChatCompletionRequest(SamplingFields, ToolFields):
    """A request for the next message of a conversation.

    Attributes:
        max_completion_tokens: Most tokens of the answer; -1 is unlimited. Wins over max_tokens.
        logprobs: Report the log-probability of each token.
        top_logprobs: Alternatives per token.
        chat_template_kwargs: Variables for the template.
        add_generation_prompt: Let the template open an assistant message.
        continue_final_message: Leave the last message open and continue it.
        add_special_tokens: Whether the tokenizer adds its own to the rendered template.
        include_reasoning: Whether the answer shows the reasoning, where the model has one.
    """

    support: ClassVar[tuple[FieldSupport, ...]] = CHAT_FIELDS

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    logprobs: Boolean = False
    top_logprobs: Annotated[Integer, Field(ge=0)] | None = None
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: Boolean | None = None
    continue_final_message: Boolean = False
    add_special_tokens: Boolean = False
    include_reasoning: Boolean = True

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        """Refuse combinations that contradict each other."""
        for name in ("max_tokens", "max_completion_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1 and value != -1:
                raise field_error(name, f"{name} is at least 1, or -1 for no limit.")
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs", "top_logprobs is only allowed with logprobs: true.")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt exclude each other."
            raise field_error("continue_final_message", message)
        self._check_template_names()
        return self

    def _check_template_names(self) -> None:
        """Refuse template variables that would replace the request's own fields."""
        names = self.chat_template_kwargs.keys()
        if len(names) > MAX_TEMPLATE_NAMES:
            message = f"chat_template_kwargs takes at most {MAX_TEMPLATE_NAMES} names."
            raise field_error("chat_template_kwargs", message)
        if reserved := sorted(RESERVED_TEMPLATE_NAMES.intersection(names)):
            message = f"chat_template_kwargs cannot set {', '.join(reserved)}."
            raise field_error(f"chat_template_kwargs.{reserved[0]}", message)


class ChatAnswer(WireModel):
    """The message that the model wrote.

    Attributes:
        content: None beside calls that come without a text.
        reasoning: What the model wrote before its answer, also under `reasoning_content`.
        function_call: The call, for requests of the older form.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(WireModel):
    """One answer.

    Attributes:
        stop_reason: The stop string or stop token id that ended it.
        token_ids: The answer's tokens, when asked for.
    """

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(WireModel):
    """The answer to a `ChatCompletionRequest`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    service_tier: str | None = None
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class ChatDelta(WireModel):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChunkChoice(WireModel):
    """What a chunk adds to one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(WireModel):
    """One event of a streamed `ChatCompletion`."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | None = None
    service_tier: str | None = None
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
