"""Texts that nobody wrote: however they are cut, the same comes out, and no letter is lost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_schemas import FunctionDefinition
from server.message_parts import MessageParser, ReasoningPart
from server.reasoning.markers import MARKERS, Opening
from server.reasoning.parser import ReasoningParser
from server.rendering.message import MessageRenderer
from server.tools.call_parser import CallParser, CallRules
from server.tools.harmony import NAME as HARMONY
from server.tools.harmony import HarmonyParser
from server.tools.registry import FORMATS
from tests.server.tools.readings import calls_of, read, text_of, visible

CALLED = '{"name": "add", "arguments": ARGUMENTS}'
MARK = "<\uff5ctool\u2581{}\uff5c>".format
# How each format writes a call with one argument, or with these arguments.
WRITTEN = {
    "hermes": f"<tool_call>{CALLED}</tool_call>",
    "llama_json": CALLED,
    "pythonic": "[add(a=VALUE)]",
    "mistral": "[TOOL_CALLS]add[ARGS]ARGUMENTS",
    "deepseek": MARK("calls\u2581begin") + MARK("call\u2581begin") + f"add{MARK('sep')}ARGUMENTS",
    "granite": f"<tool_call>[{CALLED}]",
    "phi": f"functools[{CALLED}]",
    "qwen_coder": "<tool_call><function=add><parameter=a>VALUE</parameter></function></tool_call>",
    "glm": "<tool_call>add<arg_key>a</arg_key><arg_value>VALUE</arg_value></tool_call>",
    "json": CALLED,
    HARMONY: "«<|channel|>»commentary to=functions.add«<|message|>»ARGUMENTS",
}
# What may stand there: halves of characters, literals of Python, numbers that are none.
VALUES = ["1", "null", r'"\ud800"', r'"\ud83d\ude00"', r"'\ud800'", "b'x'", "{1}", "2j", "1 + 2j"]
VALUES += ["...", "NaN", "-Infinity", "1e999", "0x" + "f" * 5000, "9" * 5000, "[" * 500, "{1: 2}"]
VALUES += [
    "x",
    "()",
    '"{}"',
    r'"{\"a\": \"\ud800\"}"',
    r'"{\"a\": \"\\ud800\"}"',
    r'"{\"\ud800\": 1}"',
]
ARGUMENTS = ["VALUE", '{"a": VALUE}']
FUNCTIONS = {"add": FunctionDefinition(name="add")}
CALL = '{"name": "add", "arguments": {"a": "}"}}'
COMMON = ["x", " ", "\n", "{", "}", "[", "]", '"', "\\", "<", ">", ";", ",", "```", CALL, "add"]


def fragments(name: str) -> list[str]:
    """What texts are made of: the format's markers, their halves, and what may stand between."""
    markers = [*FORMATS[name].openings, *FORMATS[name].closings]
    halves = [marker[: len(marker) // 2] for marker in markers]
    hidden = [f"«{marker}»" for marker in markers]
    return [*COMMON, *markers, *halves, *hidden, "[ARGS]", "«[ARGS]»", "(", ")", "=1"]


def agree(make, recording: str, place: int):
    whole = read(make(), recording, lambda text: [text])
    assert read(make(), recording, list) == whole
    assert read(make(), recording, lambda text: [text[:place], text[place:]]) == whole
    return whole


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_calls_do_not_depend_on_the_cuts(name, data):
    pieces = data.draw(st.lists(st.sampled_from(fragments(name)), max_size=12))
    place = data.draw(st.integers(0, 60))
    recording = "".join(pieces)

    def make() -> MessageParser:
        return CallParser(FORMATS[name], CallRules(FUNCTIONS))

    parts = agree(make, recording, place)
    if not calls_of(parts):
        assert text_of(parts) == visible(recording)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("name", WRITTEN)
def test_an_answer_can_be_sent_whatever_its_arguments_are(name, arguments, value):
    recording = WRITTEN[name].replace("ARGUMENTS", arguments).replace("VALUE", value)
    rules = CallRules(FUNCTIONS)
    parser: MessageParser = HarmonyParser(rules, shows_reasoning=True)
    if name != HARMONY:
        parser = CallParser(FORMATS[name], rules)
    parts = read(parser, recording, list)
    message = MessageRenderer(is_legacy=False, short_ids=False)
    for part in parts:
        assert message.delta(part).model_dump_json()
    assert message.whole().model_dump_json()
    calls = calls_of(parts)
    assert calls or value in text_of(parts)
    for _, found in calls:
        # What has been passed on stays, and what is wrong comes as text behind it.
        assert is_object(found) or value in found + text_of(parts)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_int=str), dict)
    except ValueError:
        return False


def test_every_format_is_among_those_that_are_written():
    assert {*WRITTEN} == {*FORMATS, HARMONY}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_reasoning_does_not_depend_on_the_cuts(data):
    markers = MARKERS["think"]
    kinds = [*COMMON, markers.opening, markers.closing, "</", "<thi", "«</think>»", "«<think>»"]
    recording = "".join(data.draw(st.lists(st.sampled_from(kinds), max_size=12)))
    opening = data.draw(st.sampled_from(Opening))

    def make() -> MessageParser:
        calls = CallParser(FORMATS["hermes"], CallRules(FUNCTIONS))
        return ReasoningParser(markers, opening, calls, shown=True)

    parts = agree(make, recording, data.draw(st.integers(0, 60)))
    if not any(isinstance(part, ReasoningPart) for part in parts) and opening is Opening.CLOSED:
        assert calls_of(parts) or text_of(parts) == visible(recording)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_channels_do_not_depend_on_the_cuts(data):
    kinds = [*COMMON, "«<|channel|>»", "«<|message|>»", "«<|end|>»", "«<|start|>»", "«<|call|>»"]
    kinds += ["analysis", "final", "commentary to=functions.add", "{}"]
    recording = "".join(data.draw(st.lists(st.sampled_from(kinds), max_size=14)))

    def make() -> MessageParser:
        return HarmonyParser(CallRules(FUNCTIONS), shows_reasoning=True)

    agree(make, recording, data.draw(st.integers(0, 60)))
