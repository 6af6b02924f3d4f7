"""What surrounds every request: ids, paths, methods, the drain and the last resort.

Pure ASGI, because wrappers that build request objects hide from a handler that its client has left.
Order, outermost first: Turns, CORS, RequestId, ErrorBoundary, PathRules, DrainGate. Event loop
only.
"""

import logging
import re
import uuid
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.allowed_methods import allowed_methods
from server.error_handlers import describe_error
from server.request_errors import DrainingError
from server.request_record import current_record
from server.state import REQUEST_ID_SCOPE, state_of_scope

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
ADMIN_PREFIX = "/admin"
CANCEL_SUFFIX = "/cancel"
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._\-]")
_SLASHES = re.compile(r"//+")


class RequestId:
    """Puts an id on every response: the client's, cleaned, or a new one. It is a label only."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = _NOT_IN_IDS.sub("", given)[:128] or uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        logger.debug("%s %s %s", request_id, scope["method"], scope["path"])
        await self._app({**scope, REQUEST_ID_SCOPE: request_id}, receive, send_with_id)


class ErrorBoundary:
    """Answers what no handler knew with a constant 500, which CORS lets browsers read."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and catch what comes back."""
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            if scope["type"] != "http":
                raise
            logger.exception("a request failed unexpectedly")
            if not started:
                await describe_error(error).response()(scope, receive, send)


class PathRules:
    """Serves /x/ and //x in place, HEAD as GET without a body, OPTIONS where there is a path."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rewrite the scope; the server itself leaves out the body of a HEAD."""
        if scope["type"] == "http":
            path = normalize_path(scope["path"])
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "raw_path": path.encode(), "method": method}
            if method == "OPTIONS" and (methods := allowed_methods(scope)):
                response = Response(status_code=204, headers={"Allow": ", ".join(methods)})
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def normalize_path(path: str) -> str:
    """Return a path with single slashes and none at its end."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


class DrainGate:
    """Refuses work while the server drains, and counts the requests it lets through.

    What cancels work is let through: it brings the end nearer.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let everything pass that is no work."""
        if scope["type"] != "http" or not _is_work(scope):
            await self._app(scope, receive, send)
            return
        state = state_of_scope(scope)
        if state.draining and not scope["path"].endswith(CANCEL_SUFFIX):
            response = describe_error(DrainingError()).response()
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        state.num_active += 1
        record = current_record()
        try:
            await self._app(scope, receive, send)
        finally:
            if record is None:
                state.end_active()
            else:
                record.when_over(state.end_active)
                record.when_over(partial(state.admission.leave, record))


def _is_work(scope: Scope) -> bool:
    """Return whether a request asks for something to be made: any POST of a client's."""
    path: str = scope["path"]
    return scope["method"] == "POST" and not path.startswith(ADMIN_PREFIX)
