"""A response while it is made: a task of its own, and the events that readers follow.

    chunks of the chat ──pump──► frames ──follow──► one reader, several, or none

A run ends by itself, by `fail`, or with the server; a reader that leaves ends it only if the route
says so. Event loop only.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum

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


class EventUse(Enum):
    """What becomes of the events of a response."""

    NONE = "nobody reads them"
    PASSED_ON = "one reader takes them"
    KEPT = "they may be read again, from any of them on"


class ResponseRun:
    """Makes one response.

    Attributes:
        error: What ended it, if that was an error.
        event_use: What becomes of its events.
    """

    def __init__(self, answer: ChatAnswer, renderer: ResponseRenderer, event_use: EventUse) -> None:
        """Take a chat that runs; `start` reads it."""
        self._answer: ChatAnswer | None = answer
        self._renderer = renderer
        self.event_use = event_use
        self._frames: list[bytes] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing can come any more."""
        return self._renderer.has_ended

    @property
    def num_event_bytes(self) -> int:
        """What the kept events take."""
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
        if self._answer is not None:
            self._answer.generation.fail(error)

    async def follow(self, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the events from a number on, those to come included.

        Args:
            start: Number of the first event; 0 where events are passed on.
        """
        position = start
        while True:
            # Taken before looking: what comes after the look sets it.
            changed = self._changed
            if self.event_use is EventUse.PASSED_ON:
                # One by one: more may come while a slow reader takes one.
                while self._frames:
                    yield self._frames.pop(0)
            while position < len(self._frames):
                yield self._frames[position]
                position += 1
            if self.has_ended:
                return
            await changed.wait()

    def forget_events(self) -> None:
        """Give back the memory of events: their reader has left."""
        self.event_use = EventUse.NONE
        self._frames.clear()

    async def _pump(self, on_end: Callable[[], None]) -> None:
        """Turn the chat into events to its end, whatever that is."""
        renderer, answer = self._renderer, self._answer
        assert answer is not None
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
            self._answer = None  # a response that is kept does not keep its chat
            on_end()

    def _append(self, *events: ResponseEvent) -> None:
        """Keep events and wake those who follow."""
        if self.event_use is not EventUse.NONE:
            self._frames += map(event_frame, events)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
