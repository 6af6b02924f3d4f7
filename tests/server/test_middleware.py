"""The layers around every request, without a server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.middleware import ErrorBoundary, normalize_path

NOTHING: Any = None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("", "/"),
        ("//", "/"),
        ("/x/", "/x"),
        ("//v1//models///", "/v1/models"),
        ("/v1/models/org/name", "/v1/models/org/name"),
    ],
)
def test_paths_have_single_slashes(path, expected):
    assert normalize_path(path) == expected


@given(st.text(alphabet="/ab", max_size=12))
def test_a_normal_path_is_left_alone(path):
    once = normalize_path(path)
    assert normalize_path(once) == once
    assert "//" not in once


async def test_an_answer_that_has_begun_is_not_begun_again():
    sent = []

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("late")

    async def send(message):
        sent.append(message)

    await ErrorBoundary(app)({"type": "http"}, NOTHING, send)
    assert [message["type"] for message in sent] == ["http.response.start"]


async def test_an_error_outside_http_is_raised():
    async def app(_scope, _receive, _send):
        raise KeyError("lifespan")

    with pytest.raises(KeyError):
        await ErrorBoundary(app)({"type": "lifespan"}, NOTHING, NOTHING)
