"""Server-sent events: one `data:` line per event, no comments, no ids, closed by [DONE].

The response owns the generation: however it ends, by the last token, an error or the client's
leaving, the generation is closed with it. Event loop only.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pydantic import BaseModel
from pydantic_core import to_json
from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from engine import EngineError
from server.error_handlers import describe_error
from server.request_errors import RequestError

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def frame(model: BaseModel) -> bytes:
    """Return the event of one object; keys that were not set stay away."""
    return b"data: " + model.model_dump_json(exclude_unset=True).encode() + b"\n\n"


class TextFrames:
    """Events that differ in one text alone, made from one of them that was rendered.

    What pydantic takes to build and to write an object is most of what an event costs, and of the
    events of a stream nearly all differ in nothing but their text.
    """

    # Stands for the text, which comes after all that a client may have put into the object.
    PLACE = "\0" * 32 + "the text"

    def __init__(self, model: BaseModel) -> None:
        """Take an object in which the text is `PLACE`."""
        before, place, after = frame(model).rpartition(to_json(self.PLACE))
        assert place, "the object holds no text to replace"
        self._before, self._after = before, after

    def frame(self, text: str) -> bytes:
        """Return the event with this text."""
        return self._before + to_json(text) + self._after


def error_frame(error: BaseException) -> bytes:
    """Return the event of an error."""
    return b"data: " + describe_error(error).body().rstrip() + b"\n\n"


async def guard(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Pass frames on; an error becomes an event, and [DONE] comes last in any case."""
    try:
        async with aclosing(frames):
            async for one in frames:
                yield one
    except (EngineError, RequestError) as error:
        logger.warning("a stream ended early: %s", error)
        yield error_frame(error)
    except Exception as error:
        logger.exception("a stream failed")
        yield error_frame(error)
    yield DONE


class EventStream(EventSourceResponse):
    """An event stream that releases what it streams from, even if it never began."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None],
        headers: dict[str, str],
        guarded: bool = True,
    ) -> None:
        """Prepare the response.

        Args:
            frames: Whole events.
            close: Releases what the frames are made from; called when the response is over.
            headers: Further headers.
            guarded: Turn errors into events and end with [DONE]; frames of another protocol do
                what theirs says.
        """
        frames = guard(frames) if guarded else frames
        super().__init__(frames, ping=0, sep="\n", headers={**HEADERS, **headers})
        self._close = close

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Send an event, without the cancel scope of a time limit: there is none here."""
        await send(message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
