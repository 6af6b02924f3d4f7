"""The Responses API: what a client sends.

Source: https://platform.openai.com/docs/api-reference/responses. Items and tools are read by the
server, which makes a chat of them. Data only.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from api_schemas.base import Boolean, Integer, Metadata, Number, RequestModel, field_error
from api_schemas.field_support import FieldSupport, ignored, refused, supported

LOGPROBS = "message.output_text.logprobs"
NEUTRAL_INCLUDES = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)

INPUT_FIELDS: tuple[FieldSupport, ...] = (
    *supported(
        model="a served name; may be left out",
        input="a text or items: messages, function calls and their outputs, reasoning, references "
        "to stored items; text only",
        instructions="the system message; not taken over from an earlier response",
        previous_response_id="of a response that is stored here",
        tools="functions; tools that only the API's own servers have are left out and reported",
        tool_choice="none, auto, required, a function, allowed tools",
        parallel_tool_calls="",
        text="format: text, json_object, json_schema; verbosity has no effect",
        reasoning="effort is given to the template; there are no summaries",
        truncation="disabled; auto is refused",
    ),
    refused("conversation", hint=" Use previous_response_id."),
    refused("prompt", hint=" Send the text as instructions and input."),
    refused("context_management", []),
)

RESPONSE_FIELDS: tuple[FieldSupport, ...] = (
    *INPUT_FIELDS,
    *supported(
        max_output_tokens="reasoning included",
        temperature="0 takes the most likely token",
        top_p="0 takes the most likely token",
        top_logprobs="shown with include message.output_text.logprobs",
        include="message.output_text.logprobs; what other tools would add is never there",
        metadata="echoed",
        store="kept in memory while there is room; true if left out",
        stream="server-sent events",
        stream_options="include_obfuscation: nothing is padded here",
        background="goes on without its client; needs store",
        service_tier="echoed",
        user="echoed",
    ),
    *ignored(
        "no effect on the answer",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "safety_identifier",
        "moderation",
        "client_metadata",
    ),
    *ignored("no effect without tools of the API's own servers", "max_tool_calls"),
    refused("background_options", {}),
)


class TextOptions(RequestModel):
    """What kind of text the answer is.

    Attributes:
        format: Read by the server.
    """

    format: dict[str, Any] | None = None
    verbosity: Annotated[str, Field(max_length=32)] | None = None


class ReasoningOptions(RequestModel):
    """How much to think."""

    effort: Annotated[str, Field(max_length=32)] | None = None
    summary: Annotated[str, Field(max_length=32)] | None = None


class ResponseStreamOptions(RequestModel):
    """Options that only matter to a stream."""

    include_obfuscation: Boolean = False


class ResponseInputRequest(RequestModel):
    """What makes the prompt of a response."""

    support: ClassVar[tuple[FieldSupport, ...]] = INPUT_FIELDS

    model: str | None = Field(default=None, max_length=512)
    input: str | Annotated[list[dict[str, Any]], Field(max_length=4096)] = Field(
        default_factory=list
    )
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=128)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=1024)] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: Boolean | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions = Field(default_factory=ReasoningOptions)
    truncation: Literal["auto", "disabled"] = "disabled"

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        """Refuse a request that says nothing, and one that may be cut."""
        if not (self.input or self.instructions or self.previous_response_id):
            raise field_error("input", "input is empty.")
        if self.truncation == "auto":
            raise field_error("truncation", "truncation auto is not supported by this server.")
        return self


class ResponseRequest(ResponseInputRequest):
    """A request for a response."""

    support: ClassVar[tuple[FieldSupport, ...]] = RESPONSE_FIELDS

    max_output_tokens: Annotated[Integer, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[Integer, Field(ge=0)] | None = None
    include: Annotated[list[str], Field(max_length=32)] = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)
    store: Boolean = True
    stream: Boolean = False
    stream_options: ResponseStreamOptions | None = None
    background: Boolean = False
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    @property
    def shows_logprobs(self) -> bool:
        """Whether the answer's tokens come with log-probabilities."""
        return LOGPROBS in self.include

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        """Refuse combinations that have no answer here."""
        if self.background and not self.store:
            raise field_error("background", "background needs store: true.")
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "stream_options is only allowed with stream: true.")
        for position, name in enumerate(self.include):
            if name not in NEUTRAL_INCLUDES:
                raise field_error(f"include.{position}", f"{name[:64]!r} cannot be included.")
        return self
