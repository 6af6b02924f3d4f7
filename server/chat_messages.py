"""From wire messages to what a chat template reads.

Templates know roles, a text and, for calls, arguments as an object. Pure.
"""

from collections.abc import Sequence
from typing import Any

from api_schemas import ChatMessage

Message = dict[str, Any]


def to_template_messages(
    messages: Sequence[ChatMessage], *, knows_developer: bool
) -> list[Message]:
    """Return the messages as a template expects them.

    Args:
        messages: The conversation.
        knows_developer: Whether the template has a developer role; else it becomes system.
    """
    return [_to_template_message(message, knows_developer) for message in messages]


def _to_template_message(message: ChatMessage, knows_developer: bool) -> Message:
    """Convert one message; fields that are absent stay absent."""
    role = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    converted: Message = {"role": role, "content": message.content or ""}
    if message.content is None and message.refusal is not None:
        converted["content"] = message.refusal
    reasoning = message.reasoning or message.reasoning_content
    if reasoning is not None:
        converted["reasoning_content"] = reasoning
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            converted[name] = value
    if calls := _tool_calls(message):
        converted["tool_calls"] = calls
    return converted


def _tool_calls(message: ChatMessage) -> list[Message]:
    """Return an assistant's calls, the deprecated single one included."""
    functions = [(call.id, call.function) for call in message.tool_calls]
    if message.function_call is not None:
        functions.append((None, message.function_call))
    return [
        {
            **({} if call_id is None else {"id": call_id}),
            "type": "function",
            "function": {"name": function.name, "arguments": function.parsed_arguments()},
        }
        for call_id, function in functions
    ]


def merge_leading_system(messages: Sequence[Message]) -> list[Message]:
    """Join the system messages at the beginning into one, for templates that allow only one."""
    leading = []
    for message in messages:
        if message["role"] not in ("system", "developer"):
            break
        leading.append(message)
    if len(leading) < 2:
        return list(messages)
    text = "\n\n".join(message["content"] for message in leading)
    return [{**leading[0], "content": text}, *messages[len(leading) :]]
