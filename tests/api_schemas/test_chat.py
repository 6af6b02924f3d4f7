"""Chat requests: messages, content and what contradicts itself."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from api_schemas import ChatCompletionRequest, ChatMessage


def parse(*messages, **fields) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": list(messages), **fields})


def errors(*messages, **fields) -> list:
    with pytest.raises(ValidationError) as caught:
        parse(*messages, **fields)
    return caught.value.errors()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}], "abcd"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        (["a", "b"], "ab"),
    ],
)
def test_content_is_joined_without_inventing_characters(content, text):
    assert ChatMessage.model_validate({"role": "user", "content": content}).content == text


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_a_part_of_another_kind_is_refused_by_name(kind):
    error = errors({"role": "user", "content": [{"type": kind, kind: {}}]})[0]
    assert kind in error["msg"]


@pytest.mark.parametrize(
    "content", [5, {"type": "text"}, [5], [{"text": "a"}], [{"type": "text"}], [None], True]
)
def test_content_of_another_shape_is_refused(content):
    assert errors({"role": "user", "content": content})


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
def test_only_assistants_may_say_nothing(role):
    assert errors({"role": role})
    assert ChatMessage.model_validate({"role": "assistant"}).content is None


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "a", "tool_calls": []},
        {"role": "assistant", "content": "a", "tool_calls": None, "refusal": None, "audio": None},
        {"role": "assistant", "content": None, "reasoning_content": "r"},
        {"role": "assistant", "content": "a", "annotations": [], "unknown": {"x": 1}},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]},
    ],
)
def test_histories_that_clients_replay_are_accepted(message):
    parse({"role": "user", "content": "a"}, message)


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [('{"a": 1}', {"a": 1}), ("", {}), ("{bad", "{bad"), ("[1]", "[1]"), ({"a": 1}, {"a": 1})],
)
def test_call_arguments_are_an_object_when_they_can_be(arguments, parsed):
    call = {"function": {"name": "f", "arguments": arguments}}
    message = ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})
    assert message.tool_calls[0].function.parsed_arguments() == parsed


def named_arguments(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}


@pytest.mark.parametrize(
    "name",
    sorted(
        {"messages"}
        | named_arguments(PreTrainedTokenizerBase.apply_chat_template)
        | named_arguments(render_jinja_template)
    ),
)
@pytest.mark.parametrize("value", [1, None, [], "x"])
def test_what_the_template_is_called_with_cannot_be_set(name, value):
    error = errors({"role": "user", "content": "a"}, chat_template_kwargs={name: value})[0]
    assert error["ctx"]["param"] == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "1", True, [], 1e308])
@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty", "min_p"])
def test_numbers_are_finite_numbers_in_range(name, value):
    assert errors({"role": "user", "content": "a"}, **{name: value})[0]["loc"] == (name,)


@pytest.mark.parametrize("value", [1.5, "1", True, -1, 0])
def test_n_is_a_positive_integer(value):
    assert errors({"role": "user", "content": "a"}, n=value)


@pytest.mark.parametrize("bias", [{"a": 1}, {"1.5": 1}, {"-1": 1}, {"1": 101}, {"1": "x"}, [1], 5])
def test_a_bad_logit_bias_is_refused(bias):
    assert errors({"role": "user", "content": "a"}, logit_bias=bias)


def test_logit_bias_has_a_bound():
    bias = {str(number): 1 for number in range(1025)}
    assert errors({"role": "user", "content": "a"}, logit_bias=bias)
