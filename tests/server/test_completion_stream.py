"""The mailbox between the engine's callbacks and one reader."""

import asyncio
from typing import Any

import pytest

from engine import EngineDeadError, EngineStoppingError, FinishReason, RequestStatus
from server.completion_stream import CompletionStream
from tests.server.fakes import FakeOutput


class Ends:
    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.ended: list[CompletionStream] = []

    def stream(self) -> CompletionStream:
        return CompletionStream("r", cancel=self.cancelled.append, on_end=self.ended.append)


def tokens(*ids: int) -> Any:
    return FakeOutput("r", RequestStatus.DECODING, list(ids))


def end(*ids: int, reason: FinishReason = FinishReason.STOP, **fields) -> Any:
    status = RequestStatus.FINISHED
    return FakeOutput("r", status, list(ids), finish_reason=reason, **fields)


async def test_a_slow_reader_finds_its_tokens_merged():
    stream = Ends().stream()
    for number in range(5):
        stream.feed(tokens(number))
    stream.feed(end(5, stop_reason=5, num_cached_tokens=3))
    deltas = [delta async for delta in stream]
    assert [delta.token_ids for delta in deltas] == [[0, 1, 2, 3, 4, 5]]
    assert deltas[0].finish_reason is FinishReason.STOP
    assert (deltas[0].stop_reason, deltas[0].num_cached_tokens) == (5, 3)


async def test_a_waiting_reader_gets_each_token_at_once():
    stream = Ends().stream()
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.feed(tokens(1))
    assert (await asyncio.wait_for(reader, 1)).token_ids == [1]


async def test_an_end_without_tokens_is_delivered():
    stream = Ends().stream()
    stream.feed(end(reason=FinishReason.LENGTH))
    assert (await anext(stream)).finish_reason is FinishReason.LENGTH
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_an_error_comes_after_the_tokens_before_it():
    stream = Ends().stream()
    stream.feed(tokens(1))
    failed: Any = FakeOutput("r", RequestStatus.FAILED, exception=EngineDeadError("dead"))
    stream.feed(failed)
    assert (await anext(stream)).token_ids == [1]
    with pytest.raises(EngineDeadError):
        await anext(stream)


async def test_a_cancel_that_the_reader_did_not_ask_for_is_an_error():
    stream = Ends().stream()
    cancelled: Any = FakeOutput("r", RequestStatus.CANCELLED, finish_reason=FinishReason.CANCELLED)
    stream.feed(cancelled)
    with pytest.raises(EngineStoppingError):
        await anext(stream)


async def test_closing_cancels_once_and_ends_the_iteration():
    ends = Ends()
    stream = ends.stream()
    stream.feed(tokens(1))
    await stream.aclose()
    await stream.aclose()
    assert ends.cancelled == ["r"]
    assert ends.ended == [stream]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_wakes_a_waiting_reader():
    stream = Ends().stream()
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(reader, 1)


async def test_closing_after_the_end_cancels_nothing():
    ends = Ends()
    stream = ends.stream()
    stream.feed(end(1))
    await stream.aclose()
    assert ends.cancelled == []
    assert ends.ended == [stream]


async def test_outputs_after_closing_are_dropped():
    stream = Ends().stream()
    stream.close()
    stream.feed(end(1))
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_fail_ends_a_waiting_reader_and_cancels():
    ends = Ends()
    stream = ends.stream()
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.fail(EngineStoppingError("bye"))
    with pytest.raises(EngineStoppingError):
        await asyncio.wait_for(reader, 1)
    assert ends.cancelled == ["r"]
