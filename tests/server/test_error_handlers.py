"""Every engine error has its answer, and no answer says too much."""

import json

import pytest
from pydantic import ValidationError

import engine
from api_schemas import ChatCompletionRequest
from engine import (
    EngineDeadError,
    EngineError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    RequestFailedError,
)
from server.error_handlers import ERROR_TABLE, INTERNAL_MESSAGE, describe_error
from server.request_errors import DrainingError, ModelNotFoundError, RequestError


def all_errors() -> list[type[EngineError]]:
    public = (getattr(engine, name) for name in engine.__all__)
    return [one for one in public if isinstance(one, type) and issubclass(one, EngineError)]


def test_the_table_is_complete_and_holds_nothing_else():
    assert set(ERROR_TABLE) == set(all_errors())


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (InvalidRequestError("bad", param="top_k"), 400, "invalid_value", "top_k"),
        (InvalidRequestError("bad", param="input_ids"), 400, "invalid_value", "prompt"),
        (
            PromptTooLongError(num_prompt_tokens=9, num_new_tokens=None, max_model_tokens=8),
            400,
            "context_length_exceeded",
            "prompt",
        ),
        (QueueFullError(num_waiting=3, retry_after_seconds=2.3), 429, "rate_limit_exceeded", None),
        (EngineDeadError("0x7f"), 503, "engine_dead", None),
        (RequestFailedError("/usr/lib/x.py"), 500, "request_failed", None),
        (DrainingError(), 503, "draining", None),
        (ModelNotFoundError("x", ("a",)), 404, "model_not_found", "model"),
        (RuntimeError("secret"), 500, "internal_error", None),
    ],
)
def test_an_error_is_answered_with_its_row(error, status, code, param):
    answer = describe_error(error)
    assert answer.status == status
    body = json.loads(answer.body())["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert (body["code"], body["param"]) == (code, param)
    assert body["type"] == {429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )


def test_the_engines_names_are_not_the_clients():
    answer = describe_error(InvalidRequestError("input_ids holds 9", param="input_ids"))
    assert answer.error.message == "prompt holds 9"


def test_a_full_queue_says_when_to_come_back_in_whole_seconds():
    error = QueueFullError(num_waiting=3, retry_after_seconds=2.3)
    assert describe_error(error).headers == {"Retry-After": "3"}


def test_a_dead_engine_says_when_to_come_back():
    assert int(describe_error(EngineDeadError("x")).headers["Retry-After"]) >= 1


@pytest.mark.parametrize("error", [RuntimeError("secret"), EngineDeadError("secret")])
def test_what_happened_inside_stays_inside(error):
    assert "secret" not in describe_error(error).error.message


def test_an_unknown_kind_of_error_has_constant_words():
    assert describe_error(KeyError("x")).error.message == INTERNAL_MESSAGE


def test_a_long_message_is_cut():
    assert len(describe_error(RequestError("x" * 100_000)).error.message) < 1100


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "x", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "user", "content": ""}], "tools": [{}]}, "tools.0.type"),
        ({"messages": [{"role": "user", "content": ""}], "logit_bias": {"a": 1}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": ""}], "stop": ["a", ""]}, "stop.1"),
    ],
)
def test_a_validation_error_names_the_field_as_the_client_knows_it(body, param):
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate(body)
    answer = describe_error(caught.value)
    assert answer.status == 400
    assert answer.error.param == param
    for word in ("pydantic", "ChatCompletionRequest", "ValidationError", "input_value"):
        assert word not in answer.error.message
