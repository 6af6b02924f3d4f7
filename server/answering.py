"""The one way from a running generation to an HTTP answer, streamed or whole.

Both read the same pieces of text from the same generation. Event loop only.
"""

import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api_schemas import RequestModel, SamplingFields, WireModel
from server.disconnect import run_while_connected
from server.generation import Generation
from server.owners import owned_label
from server.rendering.answer import AnswerHead, AnswerRenderer
from server.running_requests import End
from server.sse import EventStream, frame
from server.state import REQUEST_ID_SCOPE, ServerState, state_of

logger = logging.getLogger(__name__)

MAX_REPORTED_NAMES = 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def make_head(state: ServerState, body: SamplingFields, *, prefix: str) -> AnswerHead:
    """Make the head of a new answer; its id is unique over restarts and processes."""
    return AnswerHead(
        id=f"{prefix}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=state.resolve_model(body.model),
        system_fingerprint=state.fingerprint,
        service_tier=body.service_tier,
    )


async def answer(
    request: Request, body: SamplingFields, generation: Generation, renderer: AnswerRenderer
) -> Response:
    """Answer a request from its generation, which is closed in any case.

    Raises:
        EngineError: The engine failed before a whole answer was made.
        ClientDisconnect: The client left before that.
    """
    leave = enter(request, (generation.request_id,), generation.fail)

    def close() -> None:
        leave()
        generation.close()

    if body.stream:
        return EventStream(_frames(generation, renderer), close=close, headers=report_ignored(body))
    try:
        await run_while_connected(request.receive, _collect(generation, renderer))
    except ClientDisconnect:
        logger.info("a client left before its answer was made")
        raise
    finally:
        close()
    return json_response(renderer.whole(), body)


def json_response(answer: WireModel, body: RequestModel, ignored: Iterable[str] = ()) -> Response:
    """Return a whole answer and report what of its request had no effect.

    Args:
        answer: The answer.
        body: The request.
        ignored: Paths of further fields that had none.
    """
    return object_response(answer, report_ignored(body, ignored))


def object_response(answer: WireModel, headers: dict[str, str] | None = None) -> Response:
    """Return an object; keys that were not set stay away, a newline ends it."""
    text = answer.model_dump_json(exclude_unset=True).encode() + b"\n"
    return Response(text, media_type="application/json", headers=headers)


@contextmanager
def running_as(request: Request, names: Iterable[str], end: End) -> Iterator[None]:
    """Let a with block be found, and ended, by its names and by the request's X-Request-Id."""
    leave = enter(request, names, end)
    try:
        yield
    finally:
        leave()


def enter(request: Request, names: Iterable[str], end: End) -> Callable[[], None]:
    """Let a request be found, and ended, by names and its X-Request-Id; return what forgets it."""
    label = request.scope.get(REQUEST_ID_SCOPE)
    labels = () if label is None else (owned_label(request, label),)
    return state_of(request).running.enter((*names, *labels), end)


async def _frames(generation: Generation, renderer: AnswerRenderer) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream."""
    async with aclosing(generation.deltas()) as deltas:
        async for numbered in deltas:
            for event in renderer.frames(numbered.index, numbered.item):
                yield event
    if renderer.includes_usage:
        yield frame(renderer.usage_chunk())


async def _collect(generation: Generation, renderer: AnswerRenderer) -> None:
    """Read a generation to its end."""
    async with aclosing(generation.deltas()) as deltas:
        async for numbered in deltas:
            renderer.collect(numbered.index, numbered.item)


def report_ignored(body: RequestModel, ignored: Iterable[str] = ()) -> dict[str, str]:
    """Name the fields that had no effect in a header."""
    names = [name for name in (*body.ignored_names(), *ignored) if _PLAIN_NAME.fullmatch(name)]
    if not names:
        return {}
    return {"X-Ignored-Params": ", ".join(names[:MAX_REPORTED_NAMES])}
