"""Several sources as one."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from server.interleave import interleave


async def numbers(count: int, delay: float = 0.0) -> AsyncGenerator[int, None]:
    for number in range(count):
        await asyncio.sleep(delay)
        yield number


async def test_all_items_come_in_the_order_of_their_source():
    got = [(each.index, each.item) async for each in interleave([numbers(3), numbers(2)])]
    assert [item for index, item in got if index == 0] == [0, 1, 2]
    assert [item for index, item in got if index == 1] == [0, 1]


async def test_a_fast_source_does_not_wait_for_a_slow_one():
    got = [each.index async for each in interleave([numbers(1, 0.2), numbers(5)])]
    assert got == [1, 1, 1, 1, 1, 0]


async def test_an_error_in_one_source_ends_all():
    closed = []

    async def endless() -> AsyncGenerator[int, None]:
        try:
            while True:
                await asyncio.sleep(0.001)
                yield 0
        finally:
            closed.append(True)

    async def failing() -> AsyncGenerator[int, None]:
        for number in range(2):
            await asyncio.sleep(0.005)
            if number:
                raise ValueError("broken")
            yield number

    with pytest.raises(ValueError, match="broken"):
        async for _ in interleave([endless(), failing()]):
            pass
    await asyncio.sleep(0)
    assert closed == [True]


async def test_a_reader_that_leaves_ends_the_sources():
    before = len(asyncio.all_tasks())
    merged = interleave([numbers(1000), numbers(1000)])
    await anext(merged)
    await merged.aclose()
    assert len(asyncio.all_tasks()) == before


async def test_nothing_piles_up_for_a_slow_reader():
    produced = []

    async def source() -> AsyncGenerator[int, None]:
        for number in range(100):
            produced.append(number)
            yield number

    merged = interleave([source()])
    await anext(merged)
    await asyncio.sleep(0.01)
    assert len(produced) <= 4
    await merged.aclose()
