"""Several async iterators as one, in the order in which their items come.

Each source is read by its own task, one item ahead at most, so that a slow reader is felt by all
sources and nothing piles up here. Event loop only.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Numbered(Generic[Item]):
    """An item and the number of the source that it came from."""

    index: int
    item: Item


@dataclass(frozen=True, slots=True)
class _Ended:
    """A source has no more items; error is what ended it, if anything did."""

    error: Exception | None


async def interleave(
    sources: Sequence[AsyncGenerator[Item, None]],
) -> AsyncGenerator[Numbered[Item], None]:
    """Yield the items of all sources; an error in one ends all.

    Args:
        sources: Async generators; each is read to its end, or closed.
    """
    queue: asyncio.Queue[Numbered[Item] | _Ended] = asyncio.Queue(maxsize=1)
    tasks = [
        asyncio.create_task(_forward(index, source, queue)) for index, source in enumerate(sources)
    ]
    try:
        num_running = len(tasks)
        while num_running:
            arrived = await queue.get()
            if isinstance(arrived, Numbered):
                yield arrived
                continue
            if arrived.error is not None:
                raise arrived.error
            num_running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    index: int, source: AsyncGenerator[Item, None], queue: "asyncio.Queue[Numbered[Item] | _Ended]"
) -> None:
    """Put the items of one source into the queue, then how it ended."""
    error = None
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put(Numbered(index, item))
    except Exception as caught:  # noqa: BLE001 - handed to the reader, which raises it
        error = caught
    await queue.put(_Ended(error))
