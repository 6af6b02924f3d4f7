"""`async for` over a request: whole, left early, dropped, read by somebody slow, out of order."""

import asyncio
import gc
from contextlib import aclosing

import pytest

from engine import EngineDeadError, FinishReason
from tests.engine.control import loop_of
from tests.engine.threads import until

CANARY = [5, 6, 7]


@pytest.fixture
def manager(make_manager):
    manager = make_manager()
    manager.start()
    yield manager
    manager.stop(hard_stop=True)


async def collect(manager, request_id):
    return [output async for output in manager.stream(request_id)]


async def test_a_stream_yields_each_token_and_then_ends(manager):
    outputs = await collect(manager, manager.add_request([1], max_new_tokens=5, streaming=True))
    assert [len(output.generated_tokens) for output in outputs] == [1, 2, 3, 4, 5]
    assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_without_streaming_there_is_one_output(manager):
    (output,) = await collect(manager, manager.add_request([1], max_new_tokens=5))
    assert len(output.generated_tokens) == 5


async def test_a_stream_begun_late_misses_nothing(manager):
    name = manager.add_request([1], max_new_tokens=5, streaming=True)
    await asyncio.to_thread(until, lambda: manager.statistics().num_live == 0)
    assert len(await collect(manager, name)) == 5
    assert manager._router.num_handlers == 0


async def test_a_stream_begun_anywhere_in_between_misses_nothing(manager):
    for _ in range(30):
        name = manager.add_request([1], max_new_tokens=30, streaming=True)
        outputs = await collect(manager, name)
        assert [len(output.generated_tokens) for output in outputs] == list(range(1, 31))


async def test_streams_run_side_by_side(manager):
    names = [manager.add_request([n], max_new_tokens=9, streaming=True) for n in range(12)]
    streams = await asyncio.gather(*(collect(manager, name) for name in names))
    for number, outputs in enumerate(streams):
        manager.add_request([number], "again", max_new_tokens=9)
        assert outputs[-1].generated_tokens == manager.get_result("again").generated_tokens


async def test_a_stream_of_an_unknown_or_a_read_request_ends_at_once(manager):
    assert await collect(manager, "unknown") == []
    name = manager.add_request([1], max_new_tokens=2)
    assert await asyncio.to_thread(manager.get_result, name)
    assert await collect(manager, name) == []
    assert manager._router.num_handlers == 0


@pytest.mark.parametrize("way", ["close", "drop", "cancel", "raise"])
async def test_leaving_early_cancels_the_request_and_touches_nobody(manager, way):
    manager.add_request(CANARY, "canary", max_new_tokens=300)
    name = manager.add_request([1], max_new_tokens=400, streaming=True)

    async def read():
        async with aclosing(manager.stream(name)) as stream:
            async for output in stream:
                if way == "raise" and len(output.generated_tokens) == 3:
                    raise ZeroDivisionError

    if way == "close":
        async with aclosing(manager.stream(name)) as stream:
            await anext(stream)
    elif way == "drop":
        stream = manager.stream(name)
        await anext(stream)
        del stream
        gc.collect()
    elif way == "cancel":
        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(ZeroDivisionError):
            await read()
    await asyncio.sleep(0)
    canary = await asyncio.to_thread(manager.get_result, "canary")
    assert len(canary.generated_tokens) == 300
    await asyncio.to_thread(until, lambda: manager.statistics().num_live == 0)
    # What nobody asked for any more is kept for nobody.
    assert len(manager._store) == 0
    assert manager._router.num_handlers == 0
    manager.add_request(CANARY, "again", max_new_tokens=300)
    assert manager.get_result("again").generated_tokens == canary.generated_tokens


async def test_a_stream_that_was_never_begun_leaves_its_outputs(manager):
    name = manager.add_request([1], max_new_tokens=2)
    stream = manager.stream(name)
    del stream
    assert (await asyncio.to_thread(manager.get_result, name)).is_finished()


async def test_a_slow_reader_gets_everything_and_slows_nobody(manager):
    slow = manager.add_request([1], max_new_tokens=20, streaming=True)
    fast = manager.add_request([2], max_new_tokens=20, streaming=True)

    async def read_slowly():
        count = 0
        async for _ in manager.stream(slow):
            count += 1
            await asyncio.sleep(0.005)
        return count

    reading = asyncio.create_task(read_slowly())
    assert len(await collect(manager, fast)) == 20
    assert not reading.done()
    assert await reading == 20


async def test_a_handler_that_blocks_its_loop_slows_no_other_loop(manager):
    """Its own loop waits, the engine and everybody else do not."""
    manager.register_result_handler("slow", lambda output: gc.collect())
    manager.add_request([1], "slow", max_new_tokens=20, streaming=True)
    manager.add_request([2], "other", max_new_tokens=20)
    output = manager.get_result("other")  # this loop stands still meanwhile
    assert len(output.generated_tokens) == 20


async def test_a_stream_is_told_of_a_death(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    name = manager.add_request([1], max_new_tokens=9, streaming=True)
    reading = asyncio.create_task(collect(manager, name))
    await asyncio.to_thread(runner.wait_for_forward)

    def broken(*args):
        raise KeyError("our own mistake")

    loop = loop_of(manager)
    loop.restarts.max_restarts = 0
    loop.scheduler.update = broken  # type: ignore[method-assign]
    runner.go()
    *_, output = await reading
    assert isinstance(output.exception, EngineDeadError)


def test_an_event_loop_that_closes_ends_what_it_had_asked_for(manager):
    """Nobody is left to read it; the engine does not compute it to its end."""
    events = asyncio.new_event_loop()

    async def begin():
        manager.register_result_handler("a", lambda _: None)
        manager.add_request([1], "a", max_new_tokens=400, streaming=True)

    events.run_until_complete(begin())
    events.close()
    manager.add_request(CANARY, "canary", max_new_tokens=5)
    assert len(manager.get_result("canary").generated_tokens) == 5
    until(lambda: manager.statistics().num_live == 0)
    assert len(manager._store) == 0
    assert manager.statistics().num_free_blocks == manager.statistics().num_blocks
