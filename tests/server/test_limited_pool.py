"""Work off the event loop: its time ends, its thread goes on."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from server.limited_pool import LimitedPool


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[LimitedPool]:
    made = LimitedPool(1, "limited")
    yield made
    made.close()


def spin() -> None:
    """What a template that never ends does; errors of its own are caught inside of it."""
    for _ in itertools.count():
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001
            continue


async def test_results_and_errors_come_back(pool):
    assert await pool.run(None, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(5, divmod, 7, 0)


async def test_work_that_never_ends_gives_its_thread_back(pool):
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await pool.run(0.05, spin)
    assert await asyncio.wait_for(pool.run(None, threading.current_thread), 20)


async def test_work_whose_caller_has_gone_is_given_up(pool):
    task = asyncio.create_task(pool.run(None, spin))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(pool.run(None, divmod, 7, 2), 20) == (3, 1)


async def test_what_waits_for_a_thread_too_long_never_begins(pool):
    began = threading.Event()
    held = threading.Event()
    first = asyncio.create_task(pool.run(None, held.wait, 20))
    await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        await pool.run(0.05, began.set)
    held.set()
    await first
    await pool.run(None, divmod, 7, 2)
    assert not began.is_set()


async def test_the_next_work_never_gets_the_exception_of_the_last(pool):
    """Work that ends just as it is given up: whichever is first, the thread is clean."""
    for number in range(40):
        delay = 0.004 + 0.0001 * number
        with contextlib.suppress(TimeoutError):
            await pool.run(0.005, time.sleep, delay)
        assert await pool.run(None, sum, range(1000)) == 499500


async def test_what_waits_for_a_thread_is_cancelled_when_the_pool_is_closed():
    closed = LimitedPool(1, "closed")
    began, end = threading.Event(), threading.Event()

    def hold() -> bool:
        began.set()
        return end.wait(20)

    first = asyncio.create_task(closed.run(None, hold))
    assert await asyncio.to_thread(began.wait, 20)
    waiting = asyncio.create_task(closed.run(None, divmod, 7, 2))
    await asyncio.sleep(0)
    closed.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    end.set()
    assert await first


def test_work_that_outlives_its_event_loop_ends_quietly(caplog):
    pool, end = LimitedPool(1, "outliving"), threading.Event()
    with pytest.raises(TimeoutError):
        asyncio.run(pool.run(0.01, end.wait, 20))
    end.set()
    assert asyncio.run(pool.run(None, divmod, 7, 2)) == (3, 1)
    assert not caplog.records
