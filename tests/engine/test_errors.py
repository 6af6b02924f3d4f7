"""The tree of errors: each leaf on one side, with what a caller needs to act on it."""

import inspect

import pytest

from engine import errors
from engine.errors import (
    ClientError,
    DuplicateRequestError,
    EngineError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    ServerError,
    UnsupportedConfigError,
)

LEAVES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if cls not in (EngineError, ClientError, ServerError)
]


@pytest.mark.parametrize("cls", LEAVES)
def test_each_error_is_either_the_clients_or_the_servers(cls):
    assert issubclass(cls, EngineError)
    assert issubclass(cls, ClientError) != issubclass(cls, ServerError)


@pytest.mark.parametrize("cls", LEAVES)
def test_each_error_stands_in_the_picture_of_the_tree(cls):
    assert cls.__name__ in str(errors.__doc__)


def test_errors_of_values_are_value_errors():
    """So that offline callers can catch them as they would any library's."""
    for cls in (InvalidRequestError, PromptTooLongError, DuplicateRequestError):
        assert issubclass(cls, ValueError)


def test_errors_carry_what_their_handlers_read():
    assert InvalidRequestError("no", param="top_p").param == "top_p"
    assert DuplicateRequestError("a").request_id == "a"
    assert UnsupportedConfigError("no", field="seed").field == "seed"
    full = QueueFullError(num_waiting=3, retry_after_seconds=1.6)
    assert (full.num_waiting, full.retry_after_seconds) == (3, 1.6)
    assert str(full) == "3 requests are waiting and the queue takes no more; try again in 2 s"


def test_a_prompt_that_is_too_long_is_told_from_an_answer_that_is():
    prompt = PromptTooLongError(num_prompt_tokens=9, num_new_tokens=None, max_model_tokens=8)
    answer = PromptTooLongError(num_prompt_tokens=5, num_new_tokens=4, max_model_tokens=8)
    assert str(prompt) == "This model's context is 8 tokens; the request has 9 in the prompt."
    assert "5 in the prompt and 4 for the answer" in str(answer)
