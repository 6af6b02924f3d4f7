"""Work that ends when its client does."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from server.disconnect import run_while_connected


async def connected():
    await asyncio.Event().wait()


async def leaving():
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


async def test_the_works_result_is_returned_and_nothing_runs_on():
    before = len(asyncio.all_tasks())
    assert await run_while_connected(connected, asyncio.sleep(0, result=7)) == 7
    assert len(asyncio.all_tasks()) == before


async def test_the_works_error_is_raised():
    async def work():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run_while_connected(connected, work())


async def test_a_disconnect_cancels_the_work_and_waits_for_its_end():
    cleaned = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(ClientDisconnect):
        await run_while_connected(leaving, work())
    assert cleaned == [True]


async def test_being_cancelled_cancels_the_work():
    cancelled = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    task = asyncio.ensure_future(run_while_connected(connected, work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [True]
