"""The Messages API: requests, messages and the events of their streams.

Source: https://docs.anthropic.com/en/api/messages and .../messages-streaming. Content blocks of
requests are read by the server, which makes a chat of them. Data only.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from api_schemas.base import Boolean, Integer, Number, RequestModel, WireModel
from api_schemas.field_support import FieldSupport, ignored, refused, supported
from api_schemas.generation import MAX_STOP_CHARACTERS

MESSAGE_INPUT_FIELDS: tuple[FieldSupport, ...] = (
    *supported(
        model="a served name; may be left out",
        messages="text, tool_use, tool_result and thinking blocks; the result of a tool that "
        "failed (is_error) begins with Error; a last message of the assistant is continued",
        system="a text or text blocks",
        tools="with an input_schema; tools that only the API's own servers have are left out and "
        "reported",
        tool_choice="auto, any, tool, none; disable_parallel_tool_use",
        thinking="enabled, adaptive and disabled, given to the template; display omitted leaves it "
        "out of the answer, summarized shows it whole",
        output_config="effort; format json_schema",
    ),
    *ignored("what can be cached is", "cache_control"),
    *ignored("no effect on the answer", "metadata", "betas", "diagnostics", "user_profile_id"),
    refused("container"),
    refused("mcp_servers", []),
    refused("context_management", {"edits": []}),
)
MESSAGE_FIELDS: tuple[FieldSupport, ...] = (
    *MESSAGE_INPUT_FIELDS,
    *supported(
        max_tokens="required",
        stop_sequences="up to the server's limit",
        stream="server-sent events",
        temperature="0 takes the most likely token",
        top_k="0 keeps all tokens",
        top_p="0 takes the most likely token",
    ),
    *ignored("no effect on the answer", "service_tier", "inference_geo", "speed", "workspace_id"),
)


class AnthropicMessage(RequestModel):
    """One turn.

    Attributes:
        content: A text or blocks.
    """

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class AnthropicTool(RequestModel):
    """A tool.

    Attributes:
        type: "custom", or the name of one that the API's own servers run.
    """

    type: Annotated[str, Field(max_length=64)] = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: Boolean | None = None


class AnthropicToolChoice(RequestModel):
    """Which tools may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Boolean = False


class Thinking(RequestModel):
    """Whether to think before the answer.

    Attributes:
        budget_tokens: Most tokens of it.
        display: Whether it is shown; it is never summarised here.
    """

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[Integer, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(RequestModel):
    """What the answer is to be like.

    Attributes:
        format: A json_schema, read by the server.
    """

    effort: Annotated[str, Field(max_length=32)] | None = None
    format: dict[str, Any] | None = None


class CountTokensRequest(RequestModel):
    """What makes the prompt of a message."""

    support: ClassVar[tuple[FieldSupport, ...]] = MESSAGE_INPUT_FIELDS

    model: str | None = Field(default=None, max_length=512)
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=4096)]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=1024)] = Field(default_factory=list)
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)


class MessageRequest(CountTokensRequest):
    """A request for a message."""

    support: ClassVar[tuple[FieldSupport, ...]] = MESSAGE_FIELDS

    max_tokens: Annotated[Integer, Field(ge=1)]
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]] = (
        Field(default_factory=list)
    )
    stream: Boolean = False
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_k: Annotated[Integer, Field(ge=-1, lt=2**31)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None


class TextBlock(WireModel):
    """What the model says."""

    type: Literal["text"] = "text"
    text: str
    citations: None = None


class ThinkingBlock(WireModel):
    """What the model thinks; nothing signs it here."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseBlock(WireModel):
    """A call that the model asks for."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(WireModel):
    """Token counts of a message.

    Attributes:
        input_tokens: The prompt; without its cached part where the request has marked one.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(WireModel):
    """The answer to a `MessageRequest`."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class BlockDelta(WireModel):
    """What an event adds to a block; which field it has depends on its type."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"]
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class MessageEnding(WireModel):
    """Why a message ended."""

    stop_reason: str
    stop_sequence: str | None


class AnthropicError(WireModel):
    """What went wrong."""

    type: str
    message: str


class AnthropicErrorResponse(WireModel):
    """The body of every error on the routes of this API."""

    type: Literal["error"] = "error"
    error: AnthropicError
    request_id: str | None


class MessageEvent(WireModel):
    """One event of a stream; which fields it has depends on its type."""

    type: str
    message: Message | None = None
    index: int | None = None
    content_block: ContentBlock | None = None
    delta: BlockDelta | MessageEnding | None = None
    usage: MessageUsage | None = None
    error: AnthropicError | None = None


class TokenCount(WireModel):
    """How many tokens a message's prompt has."""

    input_tokens: int
