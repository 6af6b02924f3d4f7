"""Frames, the guard around them and who closes what."""

import asyncio
import json
import logging

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sse_starlette import EventSourceResponse

from api_schemas import ChatChunkChoice, ChatCompletionChunk, ChatDelta
from engine import EngineDeadError
from server.sse import DONE, EventStream, TextFrames, error_frame, frame, guard

SCOPE = {"type": "http", "method": "POST"}


def test_a_frame_is_one_line_and_keeps_explicit_nulls_only():
    choice = ChatChunkChoice(index=0, delta=ChatDelta(content="a\nb\u2028"), finish_reason=None)
    chunk = ChatCompletionChunk(id="x", created=1, model="m", choices=[choice])
    data = frame(chunk)
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    body = json.loads(data[6:])
    assert body["choices"][0]["finish_reason"] is None
    assert "usage" not in body
    assert "logprobs" not in body["choices"][0]


@given(st.text() | st.sampled_from(['"\\/', "\x00\x1f\x7f", "\u2028", "🦊", "</script>", ""]))
def test_an_event_made_from_another_is_to_the_byte_what_it_would_be(text):
    def chunk(text: str) -> ChatCompletionChunk:
        choice = ChatChunkChoice(index=0, delta=ChatDelta(content=text), logprobs=None)
        return ChatCompletionChunk(id="x", created=1, model="m", choices=[choice], usage=None)

    assert TextFrames(chunk(TextFrames.PLACE)).frame(text) == frame(chunk(text))


def test_the_text_comes_after_what_a_client_has_put_into_the_object():
    def chunk(text: str) -> ChatCompletionChunk:
        choice = ChatChunkChoice(index=0, delta=ChatDelta(content=text))
        tier = TextFrames.PLACE
        return ChatCompletionChunk(
            id="x", created=1, model="m", service_tier=tier, choices=[choice]
        )

    assert TextFrames(chunk(TextFrames.PLACE)).frame("a") == frame(chunk("a"))


def test_an_error_frame_is_json_whatever_the_text():
    body = json.loads(error_frame(ValueError('"}\n\n'))[6:])
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("error", "level"), [(EngineDeadError("x"), "WARNING"), (KeyError("x"), "ERROR")]
)
async def test_an_error_becomes_an_event_and_done_comes_last(error, level, caplog):
    async def broken():
        yield b"data: 1\n\n"
        raise error

    caplog.set_level(logging.INFO)
    frames = [one async for one in guard(broken())]
    assert frames[0] == b"data: 1\n\n"
    assert b'"error"' in frames[1]
    assert frames[2:] == [DONE]
    assert caplog.records[-1].levelname == level


def test_what_is_replaced_in_the_library_is_still_there():
    assert callable(EventSourceResponse._send_with_timeout)


async def test_a_stream_that_waits_sends_nothing(monkeypatch):
    """A comment that keeps the connection alive is what strict clients stumble over."""
    moment = anyio.sleep
    monkeypatch.setattr(anyio, "sleep", lambda _seconds: moment(0))
    sent: list[bytes] = []

    async def frames():
        yield b"data: 1\n\n"
        for _ in range(500):
            await moment(0)
        yield b"data: 2\n\n"

    async def send(message):
        sent.append(message.get("body", b""))

    async def receive():
        await asyncio.Event().wait()

    await EventStream(frames(), close=lambda: None, headers={})(SCOPE, receive, send)
    assert b"".join(sent) == b"data: 1\n\ndata: 2\n\n" + DONE


async def test_a_stream_that_never_began_is_closed_too():
    closed = []

    async def frames():
        yield b"data: 1\n\n"

    async def send(_message):
        raise OSError("gone")

    async def receive():
        await asyncio.Event().wait()

    stream = EventStream(frames(), close=lambda: closed.append(True), headers={})
    with pytest.raises(OSError, match="gone"):
        await stream(SCOPE, receive, send)
    assert closed == [True]


async def test_a_disconnect_ends_the_frames():
    ended, closed = [], []

    async def frames():
        try:
            while True:
                yield b"data: 1\n\n"
                await asyncio.sleep(0.001)
        finally:
            ended.append(True)

    async def send(_message):
        await asyncio.sleep(0)

    async def receive():
        await asyncio.sleep(0.02)
        return {"type": "http.disconnect"}

    stream = EventStream(frames(), close=lambda: closed.append(True), headers={"X-A": "1"})
    await asyncio.wait_for(stream(SCOPE, receive, send), 5)
    assert (ended, closed) == ([True], [True])
    assert stream.headers["x-a"] == "1"
    assert stream.headers["cache-control"] == "no-cache"
