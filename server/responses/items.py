"""From input items to the messages of a chat. Pure.

message               a message of its role
reasoning             goes with the assistant's message that follows
function_call         goes with the assistant's message before it, or makes one
function_call_output  a message of role tool
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.request_errors import RequestError

Item = dict[str, Any]
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}


@dataclass(slots=True)
class ChatInput:
    """A chat made of items.

    Attributes:
        messages: As /v1/chat/completions takes them.
        places: Where each came from: a path for clients.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def add(self, message: dict[str, Any], place: str) -> None:
        """Append a message."""
        self.messages.append(message)
        self.places.append(place)


def complete_items(given: str | Sequence[Item], find: Callable[[str], Item | None]) -> list[Item]:
    """Return input items with their types and ids, references replaced by what they refer to.

    Args:
        given: The field `input`.
        find: Returns a stored item by its id.

    Raises:
        RequestError: An item is of a kind that is not known here, or refers to nothing.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_complete(item, f"input.{position}", find) for position, item in enumerate(given)]


def _complete(item: Item, place: str, find: Callable[[str], Item | None]) -> Item:
    kind = item.get("type")
    if kind is None and "role" in item:
        kind = "message"
    # The type may be left out of a reference; it then has nothing but an id.
    if kind == "item_reference" or (kind is None and set(item) == {"id"}):
        found = find(str(item.get("id")))
        if found is None:
            message = f"{place}.id refers to an item that is not stored here."
            raise RequestError(message, param=f"{place}.id", code="item_not_found")
        return found
    if kind not in ("message", "reasoning", "function_call", "function_call_output"):
        message = f"{place}: items of type {str(kind)[:64]!r} are not supported by this server."
        raise RequestError(message, param=f"{place}.type")
    item_id = item.get("id")
    if not isinstance(item_id, str) or not item_id:
        item_id = make_item_id(kind)
    completed = {**item, "id": item_id, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        completed["content"] = [{"type": part, "text": item["content"]}]
    return completed


def make_item_id(kind: str) -> str:
    """Return a new id for an item of this type."""
    return f"{_PREFIXES.get(kind, 'rs')}_{uuid.uuid4().hex}"


def to_chat(instructions: str | None, history: Sequence[Item], items: Sequence[Item]) -> ChatInput:
    """Return the messages of a conversation.

    Args:
        instructions: The system message.
        history: Items of earlier responses, completed.
        items: Items of this request, completed.

    Raises:
        RequestError: A field of an item is missing or wrong.
    """
    chat = ChatInput()
    if instructions:
        chat.add({"role": "system", "content": instructions}, "instructions")
    reasoning: list[str] = []
    places = ["previous_response_id"] * len(history)
    places += [f"input.{position}" for position in range(len(items))]
    for item, place in zip([*history, *items], places, strict=True):
        if item["type"] == "reasoning":
            reasoning.append(_reasoning_text(item))
            continue
        _add_item(chat, item, place)
        if any(reasoning) and chat.messages[-1]["role"] == "assistant":
            chat.messages[-1]["reasoning"] = "\n".join(reasoning)
        reasoning.clear()
    return chat


def _add_item(chat: ChatInput, item: Item, place: str) -> None:
    if item["type"] == "message":
        chat.add({"role": item.get("role"), "content": item.get("content")}, place)
    elif item["type"] == "function_call":
        _add_call(chat, item, place)
    else:
        output = item.get("output")
        call_id = _text(item, "call_id", place)
        if not isinstance(output, str | list):
            raise RequestError(f"{place}.output is missing.", param=f"{place}.output")
        chat.add({"role": "tool", "tool_call_id": call_id, "content": output}, place)


def _add_call(chat: ChatInput, item: Item, place: str) -> None:
    """Put a call into the assistant's message that it belongs to."""
    if not (chat.messages and chat.messages[-1]["role"] == "assistant"):
        chat.add({"role": "assistant", "content": None}, place)
    arguments = item.get("arguments")
    call = {
        "id": _text(item, "call_id", place),
        "type": "function",
        "function": {
            "name": _text(item, "name", place),
            "arguments": arguments if isinstance(arguments, str) else "{}",
        },
    }
    chat.messages[-1].setdefault("tool_calls", []).append(call)


def _text(item: Item, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{place}.{name} is missing.", param=f"{place}.{name}")
    return value


def _reasoning_text(item: Item) -> str:
    """Join the texts of a reasoning item, its summary if there is nothing else."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            return "".join(text for text in texts if isinstance(text, str))
    return ""
