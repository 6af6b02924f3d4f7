"""Calls while they are made: every protocol's own client sees them before the model is done."""

import re
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from server.rendering.answer import AnswerOptions
from tests.server.live import LiveServer, run_live
from tests.server.test_tools import TOOLS
from tests.server.test_tools_elsewhere import CUSTOM, FUNCTIONS, MESSAGES

ARGUMENTS = '{"a": [1, {"b": "one two three"}], "c": "eight nine ten"}'
CALL = f'<tool_call>\n{{"name": "first", "arguments": {ARGUMENTS}}}\n</tool_call>'
# What the model has written when it is held, and what its client must have seen by then.
HELD_AT = "eight nine"
SEEN = "one two three"
# No JSON from the fourth word on, so that the call breaks off there.
BROKEN = CALL.replace('"eight', "eight")

Piece = tuple[str | None, str]  # the name of a call that begins, and a piece of its arguments


@pytest.fixture(scope="module")
def shared_live():
    with run_live(max_model_tokens=4096) as server:
        yield server


def chat_calls(live: LiveServer, **fields: Any) -> Iterator[Piece]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0, timeout=10) as client:
        tools: Any = TOOLS
        stream: Any = client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=tools, stream=True, **fields
        )
        for chunk in stream:
            for call in chunk.choices[0].delta.tool_calls or ():
                yield call.function.name, call.function.arguments


def response_calls(live: LiveServer, **fields: Any) -> Iterator[Piece]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0, timeout=10) as client:
        stream = client.responses.create(
            model="tiny", input="hello", tools=FUNCTIONS, stream=True, **fields
        )
        arguments = ""
        for event in stream:
            if event.type == "response.output_item.added" and event.item.type == "function_call":
                yield event.item.name, event.item.arguments
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
                yield None, event.delta
            if event.type == "response.function_call_arguments.done":
                assert event.arguments == arguments


def message_calls(live: LiveServer, **fields: Any) -> Iterator[Piece]:
    if fields.get("tool_choice") == "required":
        fields["tool_choice"] = {"type": "any"}
    with anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0, timeout=10) as client:
        stream = client.messages.create(
            model="tiny", messages=MESSAGES, tools=CUSTOM, max_tokens=400, stream=True, **fields
        )
        for event in stream:
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                yield event.content_block.name, ""
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                yield None, event.delta.partial_json


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}], ids=["free", "forced"])
@pytest.mark.parametrize("calls", [chat_calls, response_calls, message_calls])
def test_a_call_is_seen_while_the_model_is_held_in_the_middle_of_it(live, calls, fields):
    live.says(CALL)
    begun = CALL[: CALL.index(HELD_AT) + len(HELD_AT)]
    live.manager.pause_after = len(live.tokenizer.encode(begun, add_special_tokens=False))
    pieces = calls(live, **fields)
    assert next(pieces) == ("first", "")
    found: list[str] = []
    while SEEN not in "".join(found):
        found.append(next(pieces)[1])
    assert live.manager.paused.wait(10)
    assert live.manager.num_active == 1
    live.manager.paused.clear()
    rest = [arguments for name, arguments in pieces if name is None]
    assert rest
    assert "".join(found + rest) == ARGUMENTS


@pytest.mark.parametrize(
    ("fields", "finish"),
    [({}, "tool_calls"), ({"max_tokens": 45}, "length"), ({"stop": ["three"]}, "tool_calls")],
    ids=str,
)
@pytest.mark.parametrize("says", [CALL, BROKEN, f"{BROKEN} And {CALL}"])
def test_a_call_that_breaks_off_is_the_same_streamed_and_whole(live, says, fields, finish):
    live.says(says)
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0, timeout=10) as client:
        body: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, **fields}
        whole: Any = client.chat.completions.create(**body).choices[0]
        with client.chat.completions.stream(**body) as stream:
            for event in stream:
                assert event.type
            joined: Any = stream.current_completion_snapshot.choices[0]
    assert whole.finish_reason == joined.finish_reason == finish
    assert (whole.message.content or "") == (joined.message.content or "")
    found = [
        [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        for choice in (whole, joined)
    ]
    assert found[0] == found[1]
    assert ARGUMENTS.startswith(found[0][0][1])


def test_a_broken_call_has_no_input_in_a_message_and_its_rest_is_text(live):
    live.says(BROKEN)
    with anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0) as client:
        fields: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 400, "tools": CUSTOM}
        content: Any = client.messages.create(**fields).content
    call, text = content
    assert (call.name, call.input) == ("first", {})
    assert text.text == 'eight nine ten"}}\n</tool_call>'


def test_a_broken_call_of_a_response_keeps_its_arguments(live):
    live.says(BROKEN)
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as client:
        whole: Any = client.responses.create(model="tiny", input="hello", tools=FUNCTIONS)
    call, text = whole.output
    assert call.arguments == ARGUMENTS[: ARGUMENTS.index('"eight')]
    assert text.content[0].text == 'eight nine ten"}}\n</tool_call>'


@pytest.mark.parametrize("options", [None, {"include_usage": True}], ids=str)
@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {"functions": [TOOLS[0]["function"]]}])
def test_events_of_arguments_have_the_keys_of_events_that_are_rendered(
    live, fields, options, monkeypatch
):
    live.says(f"Two: {CALL}\n{CALL}" if "tools" in fields else CALL)

    def shapes() -> list[str]:
        body = {**fields, "stream": True, "stream_options": options, "seed": 1}
        varying = r'"(id|created|content|arguments)":("(?:[^"\\]|\\.)*"|\d+)'
        return [re.sub(varying, r'"\1":', one) for one in live.chat(**body).text.split("\n\n")]

    quick = shapes()
    assert len(quick) > 3
    monkeypatch.setattr(AnswerOptions, "text_alone", False)
    assert list(dict.fromkeys(quick)) == list(dict.fromkeys(shapes()))


def test_arguments_without_end_do_not_keep_a_message_from_being_sent(live):
    deep = '{"a": ' + "[" * 400 + "]" * 400 + "}"
    live.says(f'<tool_call>{{"name": "first", "arguments": {deep}}}</tool_call>')
    with anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0) as client:
        fields: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2000, "tools": CUSTOM}
        content: Any = client.messages.create(**fields).content
    call, text = content
    assert (call.name, call.input) == ("first", {})
    assert text.text.startswith("[[[[")
