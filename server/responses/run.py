"""A response while it is made: a task of its own, and the events that readers follow.

    chunks of the chat ──pump──► frames (append-only) ──follow──► one reader, several, or none

A run ends by itself, by `fail`, or with the server; a reader that leaves ends it only if the route
says so. Event loop only.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from api_schemas import Response, ResponseEvent
from server.chat_answer import ChatAnswer
from server.error_handlers import describe_error
from server.rendering.response import ResponseRenderer
from server.request_errors import RequestCancelledError

logger = logging.getLogger(__name__)


def event_frame(event: ResponseEvent) -> bytes:
    """Return the event on the wire, under its name."""
    data = event.model_dump_json(exclude_unset=True)
    return f"event: {event.type}\ndata: {data}\n\n".encode()


class ResponseRun:
    """Makes one response.

    Attributes:
        error: What ended it, if that was an error.
    """

    def __init__(self, answer: ChatAnswer, renderer: ResponseRenderer) -> None:
        """Take a chat that runs; `start` reads it."""
        self._answer = answer
        self._renderer = renderer
        self._frames: list[bytes] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing can come any more."""
        return self._renderer.has_ended

    @property
    def num_bytes(self) -> int:
        """What the kept events take, about."""
        return sum(map(len, self._frames))

    def whole(self) -> Response:
        """Return the response as it is now."""
        return self._renderer.whole()

    def start(self, *, on_end: Callable[[], None]) -> None:
        """Begin to read the chat.

        Args:
            on_end: Called once, when the response has ended.
        """
        self._task = asyncio.create_task(self._pump(on_end))

    async def wait(self) -> None:
        """Wait for the end."""
        assert self._task is not None
        await asyncio.shield(self._task)

    def fail(self, error: BaseException) -> None:
        """End the response with an error; `RequestCancelledError` makes it cancelled."""
        if not self.has_ended:
            self._answer.generation.fail(error)

    async def follow(self, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the events from a number on, those to come included."""
        position = start
        while True:
            # Taken before looking: what comes after the look sets it.
            changed = self._changed
            while position < len(self._frames):
                yield self._frames[position]
                position += 1
            if self.has_ended:
                return
            await changed.wait()

    def forget_events(self) -> None:
        """Give back the memory of events that nobody will ask for again."""
        self._frames.clear()

    async def _pump(self, on_end: Callable[[], None]) -> None:
        """Turn the chat into events to its end, whatever that is."""
        renderer, answer = self._renderer, self._answer
        try:
            self._append(*renderer.opening())
            async with aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    for choice in chunk.choices:
                        self._append(*renderer.events(choice))
            self._append(*renderer.closing(answer.usage()))
        except RequestCancelledError as error:
            self.error = error
            self._append(*renderer.cancellation(describe_error(error).error, answer.usage()))
        except Exception as error:  # noqa: BLE001 - the last one who could tell the reader
            self.error = error
            logger.warning("a response failed: %r", error)
            self._append(*renderer.failure(describe_error(error).error, answer.usage()))
        finally:
            answer.generation.close()
            on_end()

    def _append(self, *events: ResponseEvent) -> None:
        """Keep events and wake those who follow."""
        self._frames += map(event_frame, events)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
