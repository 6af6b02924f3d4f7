"""Strict JSON: what is refused, and that the refusal is a 400 in bounded words."""

import json

import pytest

from server.request_body import MAX_NESTING, parse_json
from server.request_errors import RequestError


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": [{"b": "\\udead"}]}', "surrogate"),
        (b'{"a": ' + b"1" * 5000 + b"}", "digits"),
        (b'{"a": ' + b"[" * 100_000 + b"}", "nested"),
        (b'{"a": ' + b"[" * MAX_NESTING + b"]" * MAX_NESTING + b"}", "nested"),
    ],
)
def test_what_is_no_plain_json_object_is_refused(data, words):
    with pytest.raises(RequestError, match=words) as caught:
        parse_json(data)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["🦙", "a\x00b", "\ufffd", "\u2028"])
def test_any_unicode_text_passes(text):
    assert parse_json(json.dumps({"a": text}).encode()) == {"a": text}


def test_the_deepest_allowed_nesting_passes():
    depth = MAX_NESTING - 2
    parse_json(b'{"a": ' + b"[" * depth + b"]" * depth + b"}")
