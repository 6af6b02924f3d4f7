"""One question over every route that answers with text, and what came back in one form for all."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.server.live import LiveServer

Object = dict[str, Any]

QUESTION = [{"role": "user", "content": "hello"}]
PATHS: dict[str, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
CHATS = [name for name in PATHS if name != "completions"]
ASKED: dict[str, Object] = {
    "chat": {"messages": QUESTION, "max_tokens": 200},
    "completions": {"prompt": "hello", "max_tokens": 200},
    "messages": {"messages": QUESTION, "max_tokens": 200},
    "responses": {"input": "hello", "max_output_tokens": 200},
}
# What a field is called where it has another name.
NAMES: dict[str, dict[str, str]] = {
    "messages": {"stop": "stop_sequences"},
    "responses": {"max_tokens": "max_output_tokens"},
}
ENDINGS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "completed": "stop",
    "incomplete": "length",
}


@dataclass
class Said:
    """What an answer says.

    Attributes:
        pieces: Its text, as it came.
        ending: Why it ended, in the words of a chat.
        calls: The name, the arguments and the id of each call.
        usage: What was counted.
        models: The names that were said to have answered.
    """

    pieces: list[str] = field(default_factory=list)
    ending: str | None = None
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    usage: Object = field(default_factory=dict)
    models: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def called(self) -> list[tuple[str, Any]]:
        """The calls, their arguments as objects."""
        return [(name, json.loads(arguments or "{}")) for name, arguments, _ in self.calls]


def body_of(route: str, **fields: Any) -> Object:
    """Return a request; fields have the names of a chat, and its tools the form of one."""
    names = NAMES.get(route, {})
    body = {**ASKED[route], **{names.get(name, name): value for name, value in fields.items()}}
    functions = [tool["function"] for tool in body.get("tools", ())]
    if functions and route == "messages":
        body["tools"] = [
            {"name": one["name"], "input_schema": one["parameters"]} for one in functions
        ]
    if functions and route == "responses":
        body["tools"] = [{"type": "function", **one} for one in functions]
    choice = body.get("tool_choice")
    if choice is not None and route == "messages":
        body["tool_choice"] = {"type": "any" if choice == "required" else choice}
    return body


def post(live: LiveServer, route: str, **fields: Any) -> httpx.Response:
    """Ask, and return whatever is answered."""
    return live.http.post(PATHS[route], json=body_of(route, **fields))


def whole(live: LiveServer, route: str, **fields: Any) -> Said:
    """Ask for a whole answer, which must come."""
    response = post(live, route, **fields)
    assert response.status_code == 200, response.text
    said = WHOLE[route](response.json())
    said.models.add(response.json()["model"])
    return said


def streamed(live: LiveServer, route: str, **fields: Any) -> Said:
    """Ask for a stream, which must end well, and return what it says."""
    if "completions" in PATHS[route]:
        fields["stream_options"] = {"include_usage": True}
    response = post(live, route, stream=True, **fields)
    assert response.status_code == 200, response.text
    said = Said()
    for event in events_of(response.text):
        READ[route](said, event)
        for holder in (event, event.get("message"), event.get("response")):
            if holder and "model" in holder:
                said.models.add(holder["model"])
    return said


def events_of(text: str) -> Iterator[Object]:
    """Yield the objects of a stream."""
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event or event["error"] is None, event
            yield event


def piece_of(route: str, event: Object) -> str:
    """Return the text that an event adds to an answer; none for most events."""
    said = Said()
    READ[route](said, event)
    return said.text


def _whole_choice(answer: Object) -> Said:
    (choice,) = answer["choices"]
    message = choice.get("message", {})
    said = Said([choice.get("text") or message.get("content") or ""], choice["finish_reason"])
    for call in message.get("tool_calls", ()):
        said.calls.append((call["function"]["name"], call["function"]["arguments"], call["id"]))
    said.usage = answer["usage"]
    return said


def _whole_message(answer: Object) -> Said:
    said = Said(ending=ENDINGS[answer["stop_reason"]], usage=answer["usage"])
    for block in answer["content"]:
        if block["type"] == "text":
            said.pieces.append(block["text"])
        else:
            said.calls.append((block["name"], json.dumps(block["input"]), block["id"]))
    return said


def _whole_response(answer: Object) -> Said:
    said = Said(ending=ENDINGS[answer["status"]], usage=answer["usage"])
    for item in answer["output"]:
        if item["type"] == "function_call":
            said.calls.append((item["name"], item["arguments"], item["call_id"]))
        else:
            said.pieces += [part["text"] for part in item["content"]]
    return said


def _read_chunk(said: Said, chunk: Object) -> None:
    said.usage = chunk.get("usage") or said.usage
    for choice in chunk["choices"]:
        assert said.ending is None, "something came after the last chunk"
        delta = choice.get("delta", {})
        if text := choice.get("text") or delta.get("content"):
            said.pieces.append(text)
        assert delta.get("tool_calls") != [], "a list of no calls"
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if call["index"] == len(said.calls):
                said.calls.append((function["name"], "", call["id"]))
            name, arguments, call_id = said.calls[call["index"]]
            said.calls[call["index"]] = (name, arguments + function["arguments"], call_id)
        said.ending = choice["finish_reason"]


def _read_message(said: Said, event: Object) -> None:
    if event["type"] == "message_start":
        said.usage = event["message"]["usage"]
    elif event["type"] == "content_block_start":
        block = event["content_block"]
        if block["type"] == "tool_use":
            said.calls.append((block["name"], "", block["id"]))
    elif event["type"] == "content_block_delta":
        delta = event["delta"]
        if delta["type"] == "text_delta":
            said.pieces.append(delta["text"])
        else:
            name, arguments, call_id = said.calls[-1]
            said.calls[-1] = (name, arguments + delta["partial_json"], call_id)
    elif event["type"] == "message_delta":
        said.ending = ENDINGS[event["delta"]["stop_reason"]]
        said.usage = {**said.usage, **event["usage"]}


def _read_event(said: Said, event: Object) -> None:
    if event["type"] == "response.output_text.delta":
        said.pieces.append(event["delta"])
    elif event["type"] in ("response.completed", "response.incomplete"):
        final = _whole_response(event["response"])
        assert final.text == said.text
        said.ending, said.calls, said.usage = final.ending, final.calls, final.usage


WHOLE: dict[str, Callable[[Object], Said]] = {
    "chat": _whole_choice,
    "completions": _whole_choice,
    "messages": _whole_message,
    "responses": _whole_response,
}
READ: dict[str, Callable[[Said, Object], None]] = {
    "chat": _read_chunk,
    "completions": _read_chunk,
    "messages": _read_message,
    "responses": _read_event,
}
