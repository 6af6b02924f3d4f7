"""The one way from a running generation to an HTTP answer, streamed or whole.

Both read the same pieces of text from the same generation. Event loop only.
"""

import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api_schemas import SamplingFields
from server.disconnect import run_while_connected
from server.generation import Generation
from server.rendering.answer import AnswerHead, AnswerRenderer
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
    headers = _report_ignored(body)
    names = (generation.request_id, request.scope.get(REQUEST_ID_SCOPE, ""))
    leave = state_of(request).running.enter(names, generation.fail)

    def close() -> None:
        leave()
        generation.close()

    if body.stream:
        return EventStream(_frames(generation, renderer), close=close, headers=headers)
    try:
        await run_while_connected(request.receive, _collect(generation, renderer))
    except ClientDisconnect:
        logger.info("a client left before its answer was made")
        raise
    finally:
        close()
    text = renderer.whole().model_dump_json(exclude_unset=True)
    return Response(text.encode() + b"\n", media_type="application/json", headers=headers)


async def _frames(generation: Generation, renderer: AnswerRenderer) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream."""
    async with aclosing(generation.deltas()) as deltas:
        async for numbered in deltas:
            for chunk in renderer.chunks(numbered.index, numbered.item):
                yield frame(chunk)
    if renderer.includes_usage:
        yield frame(renderer.usage_chunk())


async def _collect(generation: Generation, renderer: AnswerRenderer) -> None:
    """Read a generation to its end."""
    async with aclosing(generation.deltas()) as deltas:
        async for numbered in deltas:
            renderer.collect(numbered.index, numbered.item)


def _report_ignored(body: SamplingFields) -> dict[str, str]:
    """Name the fields that had no effect in a header."""
    names = [name for name in body.ignored_names() if _PLAIN_NAME.fullmatch(name)]
    if not names:
        return {}
    return {"X-Ignored-Params": ", ".join(names[:MAX_REPORTED_NAMES])}
