"""The Responses API: what the server sends, whole or as events.

Source: https://platform.openai.com/docs/api-reference/responses and .../responses-streaming.
Data only.
"""

from typing import Any, Literal

from api_schemas.base import WireModel
from api_schemas.generation import TokenLogprob

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(WireModel):
    """A piece of a message's content."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputMessage(WireModel):
    """What the model says."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningText(WireModel):
    """What the model thinks."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class ReasoningItem(WireModel):
    """The model's reasoning; it is not summarised here."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCallItem(WireModel):
    """A call that the model asks for.

    Attributes:
        id: The item's.
        call_id: What the result of the call refers to.
        arguments: A JSON text.
    """

    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class InputTokensDetails(WireModel):
    """How the input's tokens came about."""

    cached_tokens: int


class OutputTokensDetails(WireModel):
    """What the output's tokens were spent on."""

    reasoning_tokens: int


class ResponseUsage(WireModel):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(WireModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(WireModel):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens", "content_filter"]


class Response(WireModel):
    """A response, in whatever condition it is; it repeats what the request said."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: str
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class ResponseEvent(WireModel):
    """One event of a stream; which fields it has depends on its type.

    Attributes:
        sequence_number: Counts the events of a response from 0.
        response: The whole response at that moment.
        output_index: The item's place in the output.
        content_index: The part's place in the item.
    """

    type: str
    sequence_number: int
    response: Response | None = None
    output_index: int | None = None
    item: OutputItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[TokenLogprob] | None = None
    name: str | None = None
    arguments: str | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None


class DeletedResponse(WireModel):
    """What is left of a deleted response."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(WireModel):
    """A page of a response's input items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(WireModel):
    """How many tokens the input of a response has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
