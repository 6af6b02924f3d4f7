"""From a response's request to the chat completion that answers it. Pure."""

from collections.abc import Mapping
from typing import Any

from api_schemas import ChatCompletionRequest, ResponseInputRequest, ResponseRequest
from server.responses.items import ChatInput
from server.wire_names import renamed

# What a chat calls it, and what a response does.
WIRE_NAMES: Mapping[str, str] = {
    "messages": "input",
    "prompt": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def wire_names(chat: ChatInput) -> dict[str, str]:
    """Return what the fields of the chat are called in the response's request."""
    places = {f"messages.{index}": place for index, place in enumerate(chat.places)}
    return {**WIRE_NAMES, **places}


def to_chat_request(body: ResponseInputRequest, chat: ChatInput) -> ChatCompletionRequest:
    """Return the chat completion; what is absent stays absent.

    Raises:
        RequestError: A field is wrong, under the name that the client knows.
    """
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": chat.messages,
        "tools": function_tools(body.tools),
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body.text.format),
        "reasoning_effort": body.reasoning.effort,
    }
    if not fields["tools"]:
        # Without functions there is nothing to choose or to do at once.
        fields.pop("parallel_tool_calls")
        if fields["tool_choice"] in ("auto", "none"):
            fields.pop("tool_choice")
    if isinstance(body, ResponseRequest):
        fields |= {
            "max_completion_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stream": body.stream,
            "service_tier": body.service_tier,
        }
        if body.shows_logprobs:
            fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    given = {name: value for name, value in fields.items() if value is not None}
    with renamed(wire_names(chat)):
        return ChatCompletionRequest.model_validate(given)


def function_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the functions among the tools, in the form that chats know."""
    return [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in tools
        if tool.get("type") == "function"
    ]


def ignored_paths(body: ResponseInputRequest) -> list[str]:
    """Return the paths of what has no effect here."""
    paths = [
        f"tools.{position}"
        for position, tool in enumerate(body.tools)
        if tool.get("type") != "function"
    ]
    if body.reasoning.summary is not None:
        paths.append("reasoning.summary")
    if body.text.verbosity is not None:
        paths.append("text.verbosity")
    return paths


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    """Return the choice in the form that chats know; what is unknown is left for them to refuse."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        tools = function_tools([tool for tool in choice["tools"] if isinstance(tool, dict)])
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode"), "tools": tools},
        }
    return choice


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the format in the form that chats know."""
    if form is None or form.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in form.items() if name != "type"},
    }
