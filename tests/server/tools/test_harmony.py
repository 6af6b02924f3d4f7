"""gpt-oss answers: channels, recipients, and what happens without them."""

import pytest

from api_schemas import FunctionDefinition
from server.message_parts import ReasoningPart, join_parts
from server.tools.call_parser import CallRules
from server.tools.harmony import HarmonyParser
from server.tools.registry import is_harmony
from tests.server.tools.readings import calls_of, every_reading, text_of

FUNCTIONS = {name: FunctionDefinition(name=name) for name in ("f", "g")}
THOUGHT = "«<|channel|>»analysis«<|message|>»Hm, 1 < 2.«<|end|>»«<|start|>»assistant"
CALL = '«<|channel|>»commentary to=functions.f «<|constrain|>»json«<|message|>»{"a": 1}'


def parser(*, is_single: bool = False, shown: bool = True):
    rules = CallRules(FUNCTIONS, is_single)
    return lambda: HarmonyParser(rules, shows_reasoning=shown)


@pytest.mark.parametrize(
    ("recording", "reasoning", "calls", "text"),
    [
        (f"{THOUGHT}«<|channel|>»final«<|message|>»Yes.", "Hm, 1 < 2.", [], "Yes."),
        ("«<|channel|>»final«<|message|>»Yes.«<|return|>»", "", [], "Yes."),
        (f"{THOUGHT}{CALL}", "Hm, 1 < 2.", [("f", '{"a": 1}')], ""),
        (f"{CALL}«<|call|>»", "", [("f", '{"a": 1}')], ""),
        (
            f"«<|channel|>»commentary«<|message|>»I look.«<|end|>»«<|start|>»a{CALL}«<|call|>»"
            "«<|start|>»assistant to=functions.g«<|channel|>»commentary«<|message|>»{}",
            "",
            [("f", '{"a": 1}'), ("g", "{}")],
            "I look.",
        ),
        (CALL.replace('{"a": 1}', '{"a": '), "", [("f", '{"a": ')], ""),
        (CALL.replace('{"a": 1}', '{"a": one}'), "", [("f", '{"a": ')], "one}"),
        (CALL.replace('{"a": 1}', " { "), "", [], " { "),
        (CALL.replace('{"a": 1}', "{a: 1}"), "", [], "{a: 1}"),
        (f"{CALL} \n and more", "", [("f", '{"a": 1}')], "and more"),
        (f"{CALL}«<|call|>»«<|channel|>»final«<|message|>»Yes.", "", [("f", '{"a": 1}')], "Yes."),
        (f"{CALL.replace('1}', '')}«<|message|>»Yes.", "", [("f", '{"a": ')], "Yes."),
        (CALL.replace("functions.f", "functions.unknown"), "", [], '{"a": 1}'),
        ("No channel at all.", "", [], "No channel at all."),
        (f"{THOUGHT}", "Hm, 1 < 2.", [], ""),
        ("", "", [], ""),
    ],
)
def test_messages_are_told_by_their_headers(recording, reasoning, calls, text):
    parts = every_reading(parser(), recording)
    assert "".join(part.text for part in parts if isinstance(part, ReasoningPart)) == reasoning
    assert (calls_of(parts), text_of(parts)) == (calls, text)


def test_one_call_and_no_reasoning_may_be_wanted():
    recording = f"{THOUGHT}{CALL}«<|call|>»«<|start|>»assistant{CALL}«<|call|>»"
    parts = every_reading(parser(is_single=True, shown=False), recording)
    assert not any(isinstance(part, ReasoningPart) for part in parts)
    assert len(calls_of(parts)) == 1


def test_nothing_follows_the_only_call_that_is_wanted_even_if_it_breaks_off():
    recording = f"{CALL.replace('1', chr(34) + 'x')}\ny«<|call|>»«<|start|>»assistant{CALL}"
    parts = every_reading(parser(is_single=True), recording)
    assert (calls_of(parts), text_of(parts)) == ([("f", '{"a": "x}')], "")


def test_arguments_are_passed_on_as_they_come():
    reader = parser()()
    parts = reader.special("<|channel|>")
    parts += [*reader.text("commentary to=functions.f"), *reader.special("<|message|>")]
    so_far = ""
    for character in '{"a": [1]}':
        parts += reader.text(character)
        so_far += character
        assert calls_of(join_parts(parts)) == ([("f", so_far)] if len(so_far) > 1 else [])


def test_the_template_or_the_operator_says_so():
    assert is_harmony("auto", "{{ '<|channel|>' }}")
    assert is_harmony("harmony", "")
    assert not is_harmony("json", "<|channel|>")
