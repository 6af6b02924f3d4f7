"""Requests share a compiled grammar exactly if they ask for the same one."""

import pytest

from api_schemas import ChatCompletionRequest
from server.answer_plan import ModelFormats, plan_answer
from server.prompt_encoding import RenderedChat
from server.reasoning.markers import MARKERS
from server.tools.registry import FORMATS

MESSAGES = [{"role": "user", "content": "a"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def tools(**fields) -> dict:
    function = {"name": "f", "parameters": SCHEMA, **fields}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


ASKING: list[dict] = [
    {"guided_regex": "a"},
    {"guided_grammar": "a"},
    {"guided_choice": ["a"]},
    {"guided_json": SCHEMA},
    {"guided_json": '{"type": "object"}'},
    tools(),
    tools(strict=True),
    tools(name="g"),
    tools(parameters=None),
    {**tools(), "parallel_tool_calls": False},
    {**tools(), "tool_choice": "auto", "guided_json": SCHEMA},
]


def key(fields: dict, prompt: str = "") -> str:
    body = ChatCompletionRequest.model_validate({"messages": MESSAGES, **fields})
    formats = ModelFormats(FORMATS["hermes"], MARKERS["think"], {})
    recipe = plan_answer(formats, body, RenderedChat(prompt, [])).recipe
    assert recipe is not None
    return recipe.key()


def test_equal_requests_have_equal_keys_and_others_have_not():
    keys = [key(fields, prompt) for fields in ASKING for prompt in ("", "<think>")]
    assert len(set(keys)) == len(keys)
    assert keys == [key(fields, prompt) for fields in ASKING for prompt in ("", "<think>")]


@pytest.mark.parametrize("described", ["one", "two"])
def test_what_does_not_shape_the_grammar_is_not_in_the_key(described):
    assert key(tools(description=described)) == key(tools())
