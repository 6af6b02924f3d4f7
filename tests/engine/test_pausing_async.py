"""Pausing from an event loop, which runs on meanwhile."""

import asyncio
import threading

import pytest

from tests.engine.control import loop_of
from tests.engine.threads import Call, until


@pytest.fixture
def busy(controlled):
    """A manager in the middle of a long answer, and its runner."""
    manager, runner = controlled()
    manager.start()
    manager.add_request([1, 2], "a", max_new_tokens=400, streaming=True)
    runner.wait_for_forward(3)
    yield manager, runner
    runner.go()
    manager.cancel_request("a")
    manager.stop()


async def test_no_step_runs_inside_an_async_pause(busy):
    manager, runner = busy
    async with manager.pause_async():
        before = runner.num_forwards
        await asyncio.sleep(0.05)
        assert runner.num_forwards == before
    await asyncio.to_thread(until, lambda: runner.num_forwards > before)


async def test_the_event_loop_runs_on_while_a_pause_waits_for_a_step(busy):
    manager, runner = busy
    runner.hold()
    await asyncio.to_thread(until, lambda: runner.num_forwards > runner._num_ended)
    entering = asyncio.create_task(manager.pause_async().__aenter__())
    for _ in range(5):
        await asyncio.sleep(0.002)
    assert not entering.done()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not manager._pause.is_wanted


async def test_coroutines_and_threads_hold_together(busy):
    manager, runner = busy
    leave = threading.Event()

    def hold():
        with manager.pause():
            leave.wait(10)

    holder = Call(hold)
    async with manager.pause_async(), manager.pause_async():
        before = runner.num_forwards
    until(lambda: loop_of(manager)._channels.pause._parked)
    await asyncio.sleep(0.02)
    assert runner.num_forwards == before
    leave.set()
    holder.outcome()
    await asyncio.to_thread(until, lambda: runner.num_forwards > before)


async def test_stopping_inside_ones_own_async_pause_raises_wherever_it_runs(busy):
    manager, _ = busy
    async with manager.pause_async():
        with pytest.raises(RuntimeError, match="own pause"):
            manager.stop(block=False)
        with pytest.raises(RuntimeError, match="own pause"):
            await asyncio.to_thread(manager.stop)


async def test_a_task_that_outlives_the_pause_it_was_made_in_may_stop(controlled):
    manager, _ = controlled()
    manager.start()
    left = asyncio.Event()

    async def stop_later():
        await left.wait()
        await asyncio.to_thread(manager.stop)

    async with manager.pause_async():
        task = asyncio.create_task(stop_later())
    left.set()
    await task
    assert not manager.is_running()


async def test_what_does_not_run_cannot_be_paused(make_manager):
    manager = make_manager()
    with pytest.raises(RuntimeError, match="does not run"):
        async with manager.pause_async():
            pytest.fail("the pause was entered")


async def test_who_waits_for_a_loop_that_ends_is_told(controlled):
    manager, runner = controlled()
    runner.hold()
    manager.start()
    manager.add_request([1], "a", max_new_tokens=400)
    await asyncio.to_thread(runner.wait_for_forward)
    cause = KeyError("our own mistake")

    def broken(*args):
        raise cause

    loop = loop_of(manager)
    loop.restarts.max_restarts = 0
    loop.scheduler.update = broken  # type: ignore[method-assign]
    entering = asyncio.create_task(manager.pause_async().__aenter__())
    await asyncio.sleep(0.01)
    runner.go()
    with pytest.raises(RuntimeError, match="ended while a pause waited") as caught:
        await entering
    assert caught.value.__cause__ is cause


def test_an_event_loop_that_closes_while_it_waits_does_not_end_the_engine(busy):
    manager, runner = busy
    runner.hold()
    events = asyncio.new_event_loop()
    entering = manager.pause_async().__aenter__()

    async def begin():
        task = asyncio.ensure_future(entering)
        await asyncio.sleep(0.01)
        return task

    task = events.run_until_complete(begin())
    task.cancel()
    events.run_until_complete(asyncio.gather(task, return_exceptions=True))
    events.close()
    before = runner.num_forwards
    runner.go()
    until(lambda: runner.num_forwards > before)
