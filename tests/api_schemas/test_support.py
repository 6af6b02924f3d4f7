"""The table of fields is what the models do."""

import pytest
from pydantic import ValidationError

import api_schemas
from api_schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    Handling,
)
from api_schemas.support import CHAT_FIELDS, COMPLETION_FIELDS

MESSAGES = {"messages": [{"role": "user", "content": "a"}]}
REQUESTS = [
    (ChatCompletionRequest, CHAT_FIELDS, MESSAGES),
    (CompletionRequest, COMPLETION_FIELDS, {"prompt": "a"}),
]
ROWS = [(model, row, base) for model, rows, base in REQUESTS for row in rows]
NON_NEUTRAL = "something else"


def test_exports_are_sorted_and_complete():
    assert sorted(api_schemas.__all__, key=str) == sorted(set(api_schemas.__all__), key=str)
    assert all(hasattr(api_schemas, name) for name in api_schemas.__all__)


@pytest.mark.parametrize(("model", "rows", "_base"), REQUESTS)
def test_the_supported_fields_are_the_models_fields(model, rows, _base):
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    supported = {row.name for row in rows if row.handling is Handling.SUPPORTED}
    assert supported == set(model.model_fields)


@pytest.mark.parametrize(
    ("model", "row", "base"),
    [case for case in ROWS if case[1].handling is Handling.REFUSED],
    ids=lambda case: getattr(case, "name", None),
)
def test_a_refused_field_is_refused_by_name_unless_neutral(model, row, base):
    with pytest.raises(ValidationError) as caught:
        model.model_validate({**base, row.name: NON_NEUTRAL})
    detail = caught.value.errors()[0]
    assert detail["ctx"]["param"] == row.name
    assert detail["msg"].startswith(row.name)
    for neutral in (*row.neutral, None):
        assert model.model_validate({**base, row.name: neutral}).ignored_names() == []


@pytest.mark.parametrize(
    ("model", "row", "base"),
    [case for case in ROWS if case[1].handling is Handling.IGNORED],
    ids=lambda case: getattr(case, "name", None),
)
def test_an_ignored_field_takes_anything_and_is_reported(model, row, base):
    for value in (NON_NEUTRAL, 1, {"a": [1]}, True):
        assert model.model_validate({**base, row.name: value}).ignored_names() == [row.name]


def test_false_is_not_zero():
    with pytest.raises(ValidationError):
        ChatCompletionRequest.model_validate({**MESSAGES, "top_a": False})
