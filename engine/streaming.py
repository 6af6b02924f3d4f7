"""A request's outputs as an asynchronous iterator, for callers on an event loop.

Event loop only; the engine thread sees no more of it than a handler. Whoever leaves the iteration
early ends the request with it: what nobody reads is not computed.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from engine.mailbox import Mailbox
from engine.output_router import OutputRouter
from engine.requests import GenerationOutput

# How long nothing may come before it is asked whether anything can. Only a request whose outputs
# were taken by someone else at the same moment ends this way.
RECHECK_SECONDS = 1.0


async def stream_outputs(
    request_id: str, mailbox: Mailbox, router: OutputRouter
) -> AsyncGenerator[GenerationOutput, None]:
    """Yield a request's outputs that nobody has taken yet, to its terminal one.

    Args:
        request_id: A request that was added, on this thread or another.
        mailbox: Where a cancellation goes.
        router: Where the outputs come from.
    """
    arrived: asyncio.Queue[GenerationOutput] = asyncio.Queue()
    for output in router.take_over(request_id, arrived.put_nowait):
        arrived.put_nowait(output)
    has_ended = False
    try:
        while (next_output := await _next_output(request_id, mailbox, arrived)) is not None:
            has_ended = next_output.is_finished()
            yield next_output
            if has_ended:
                return
    finally:
        if not has_ended:
            router.abandon(request_id)
            mailbox.post_cancel(request_id)
            if not mailbox.is_live(request_id):
                router.unregister(request_id)


async def _next_output(
    request_id: str, mailbox: Mailbox, arrived: "asyncio.Queue[GenerationOutput]"
) -> GenerationOutput | None:
    """Wait for the next output; None if none can come."""
    while arrived.empty():
        if not mailbox.is_live(request_id):
            # Its terminal output, if it has just come, stands before us in the event loop's queue.
            await asyncio.sleep(0)
            return None if arrived.empty() else arrived.get_nowait()
        # Not wait_for: it can swallow a cancellation.
        with suppress(TimeoutError):
            async with asyncio.timeout(RECHECK_SECONDS):
                return await arrived.get()
    return arrived.get_nowait()
