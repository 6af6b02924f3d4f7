"""From a request of the Messages API to the chat completion that answers it. Pure.

text          joined, in the message it stands in
thinking      the reasoning of the assistant's message
tool_use      a call of the assistant's message
tool_result   a message of role tool; what the user says beside it keeps its place. A tool that
              failed says so in its text: chats know no other way
"""

from collections.abc import Sequence
from typing import Any

from api_schemas import AnthropicTool, ChatCompletionRequest, CountTokensRequest, MessageRequest
from server.request_errors import RequestError
from server.wire_names import renamed

Block = dict[str, Any]
Messages = list[dict[str, Any]]

WIRE_NAMES = {
    "prompt": "messages",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
# What the result of a tool that failed begins with.
FAILED = "Error: "
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def to_chat_request(body: CountTokensRequest) -> ChatCompletionRequest:
    """Return the chat completion; what is absent stays absent.

    Raises:
        RequestError: A field is wrong, under the name that the client knows.
    """
    messages, places = _to_messages(body)
    tools = [_to_function(tool) for tool in body.tools if is_custom(tool)]
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "reasoning_effort": body.output_config.effort,
        "response_format": _response_format(body.output_config.format),
        **_tool_fields(body, tools),
        **_thinking_fields(body),
    }
    if body.messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if isinstance(body, MessageRequest):
        fields |= {
            "max_completion_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "stream": body.stream,
            "temperature": body.temperature,
            "top_k": body.top_k,
            "top_p": body.top_p,
        }
    given = {name: value for name, value in fields.items() if value is not None}
    with renamed({**WIRE_NAMES, **places}):
        return ChatCompletionRequest.model_validate(given)


def is_custom(tool: AnthropicTool) -> bool:
    """Return whether a tool is the client's own."""
    return tool.type == "custom"


def ignored_paths(body: CountTokensRequest) -> list[str]:
    """Return the paths of what has no effect here."""
    paths = [f"tools.{index}" for index, tool in enumerate(body.tools) if not is_custom(tool)]
    if body.thinking is not None and body.thinking.budget_tokens is not None and not _has_budget():
        paths.append("thinking.budget_tokens")
    if body.thinking is not None and body.thinking.display == "summarized":
        paths.append("thinking.display")
    return paths


def _to_messages(body: CountTokensRequest) -> tuple[Messages, dict[str, str]]:
    """Return the chat's messages, and where each came from."""
    messages: Messages = []
    places: dict[str, str] = {}
    if body.system:
        messages.append({"role": "system", "content": body.system})
        places["messages.0"] = "system"
    for index, message in enumerate(body.messages):
        place = f"messages.{index}"
        first = len(messages)
        if isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            messages.append(_assistant_message(message.content, f"{place}.content"))
        else:
            messages += _user_messages(message.role, message.content, f"{place}.content")
        places |= {f"messages.{number}": place for number in range(first, len(messages))}
    return messages, places


def _user_messages(role: str, blocks: Sequence[Block], place: str) -> Messages:
    """Return what a user says, and the results of tools between it, in their order."""
    messages: Messages = []
    parts: list[Block] = []
    for position, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(_part(block))
            continue
        if parts:
            messages.append({"role": role, "content": parts})
            parts = []
        messages.append(_tool_message(block, f"{place}.{position}"))
    if parts or not messages:
        messages.append({"role": role, "content": parts})
    return messages


def _tool_message(block: Block, place: str) -> dict[str, Any]:
    content = block.get("content")
    if content is None:
        content = ""
    if isinstance(content, list):
        content = [_part(part) if isinstance(part, dict) else part for part in content]
    is_error = block.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        raise RequestError(f"{place}.is_error is true or false.", param=f"{place}.is_error")
    if is_error and isinstance(content, str):
        content = FAILED + content
    elif is_error and isinstance(content, list):
        content = [{"type": "text", "text": FAILED}, *content]
    call_id = _text(block, "tool_use_id", place)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _assistant_message(blocks: Sequence[Block], place: str) -> dict[str, Any]:
    """Return what the assistant has thought, said and called."""
    parts: list[Block] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for position, block in enumerate(blocks):
        where = f"{place}.{position}"
        if block.get("type") == "thinking":
            thoughts.append(_text(block, "thinking", where))
        elif block.get("type") == "tool_use":
            calls.append(_to_call(block, where))
        elif block.get("type") != "redacted_thinking":
            parts.append(_part(block))
    message: dict[str, Any] = {"role": "assistant", "content": parts}
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _to_call(block: Block, place: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise RequestError(f"{place}.input is an object.", param=f"{place}.input")
    name = _text(block, "name", place)
    return {
        "id": _text(block, "id", place),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _part(block: Block) -> Block:
    """Return a block as a part of a chat's content, without what has no effect."""
    return {name: value for name, value in block.items() if name in ("type", "text")}


def _text(block: Block, name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{place}.{name} is missing.", param=f"{place}.{name}")
    return value


def _to_function(tool: AnthropicTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _tool_fields(body: CountTokensRequest, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tools and what is said about their use."""
    choice = body.tool_choice
    if not tools:
        if choice is not None and choice.type in ("any", "tool"):
            raise RequestError("tool_choice needs tools.", param="tool_choice")
        return {}
    fields: dict[str, Any] = {"tools": tools}
    if choice is None:
        return fields
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        if choice.name is None:
            raise RequestError("tool_choice.name is missing.", param="tool_choice.name")
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = _TOOL_CHOICES[choice.type]
    return fields


def _thinking_fields(body: CountTokensRequest) -> dict[str, Any]:
    """Return what makes the template let the model think, or not."""
    thinking = body.thinking
    if thinking is None:
        return {}
    if thinking.type == "disabled":
        return {"chat_template_kwargs": {"enable_thinking": False}}
    fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    if thinking.display == "omitted":
        fields["include_reasoning"] = False
    if thinking.budget_tokens is not None and _has_budget():
        fields["thinking_token_budget"] = thinking.budget_tokens
    return fields


def _has_budget() -> bool:
    """Return whether chats can bound the reasoning."""
    return "thinking_token_budget" in ChatCompletionRequest.model_fields


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}
