"""Calls that are read at their end: in one look, whatever a model has repeated on the way there."""

import json
import warnings

import pytest

from api_schemas import FunctionDefinition
from server.tools.blocks import FAILED, BlockState
from server.tools.calls import Call
from server.tools.json_reader import MAX_DEPTH
from server.tools.registry import FORMATS

FUNCTIONS = {"f": FunctionDefinition(name="f")}
TIMES = 400_000
# Format, what stands before and behind what is repeated. A pattern that takes back what it has
# matched, and a search that begins anew at each place, would be at these for minutes.
REPEATED = [
    ("glm", "f", "<arg_key>", "</tool_call>"),
    ("glm", "f", "<arg_key></arg_key><arg_value>", "</tool_call>"),
    ("glm", "f<arg_key>a", "</arg_key><arg_value>", "</tool_call>"),
    ("glm", "f<arg_key>a</arg_key>", "\n", "</tool_call>"),
    ("glm", "", "f", ""),
    ("glm", "f", "\n", ""),
    ("qwen_coder", "<function=f>", " ", "x</function></tool_call>"),
    ("qwen_coder", "<function=f>", "<parameter=a>", "</function></tool_call>"),
    ("qwen_coder", "<function=f>", "<parameter=a>\n</function>\n", "</tool_call>"),
    ("qwen_coder", "<function=f>", "</function>\n", ""),
    ("qwen_coder", "", "<function=", ""),
]
NESTED = {
    "glm": "f<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>",
    "qwen_coder": "<function=f><parameter=a>{}</parameter></function></tool_call>",
    "pythonic": "[f(a={})]",
}


def read(name: str, text: str) -> tuple[Call, ...] | None:
    """The calls behind an opening; None if there are none."""
    block = FORMATS[name].block(FUNCTIONS)
    step = FAILED
    for piece in text if name == "pythonic" else [text]:
        step = block.feed(piece)
    if step.state is BlockState.HELD:
        step = block.finish()
    return None if step is FAILED else step.calls


@pytest.mark.parametrize(("name", "before", "repeated", "behind"), REPEATED)
def test_what_a_model_repeats_is_looked_at_once(name, before, repeated, behind):
    assert read(name, before + repeated * (TIMES // len(repeated)) + behind) is None


@pytest.mark.parametrize("name", NESTED)
def test_arguments_are_as_deep_as_those_that_are_passed_on(name):
    def calls(depth: int) -> tuple[Call, ...] | None:
        return read(name, NESTED[name].format("[" * depth + "]" * depth))

    (call,) = calls(MAX_DEPTH - 1) or ()
    assert json.loads(call.arguments)["a"] != ""
    for depth in (MAX_DEPTH, 190, 400, 20_000):
        deeper = calls(depth)
        # Too deep, it is a text where the schema allows one, and no call elsewhere.
        if deeper is not None:
            assert isinstance(json.loads(deeper[0].arguments)["a"], str)


@pytest.mark.parametrize("value", [r"'\d'", "1if 1else 2", "0x1for"])
def test_python_says_nothing_about_what_a_model_writes(value):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read("pythonic", f"[f(a={value})]")
    assert caught == []


def test_of_arguments_that_come_twice_the_last_counts():
    pair = "<arg_key>a</arg_key><arg_value>{}</arg_value>"
    (call,) = read("glm", f"f{pair.format(1)}{pair.format(2)}</tool_call>") or ()
    assert call.arguments == '{"a": 2}'
