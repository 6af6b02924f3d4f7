"""Errors in the form of the Messages API, on its routes and nowhere else.

Whatever refuses a request, a route, the check of keys or the drain, has written an error in the
form of the other routes; here it is put into this API's envelope. Pure ASGI; event loop only.
"""

import json

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_schemas import AnthropicError, AnthropicErrorResponse
from server.middleware import normalize_path
from server.state import REQUEST_ID_SCOPE

OVERLOADED = 529
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def error_type(status: int) -> str:
    """Return what this API calls an error of a status."""
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def api_status(status: int) -> int:
    """Return the status under which this API reports an error."""
    return OVERLOADED if status == 503 else status


class MessageErrors:
    """Rewrites the errors of the Messages API's routes."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold back what begins like an error until its body is there."""
        if scope["type"] != "http" or not _is_message_route(scope["path"]):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def watch(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                response = _rewrite(start, body, scope.get(REQUEST_ID_SCOPE))
                await response(scope, receive, send)

        await self._app(scope, receive, watch)


def _is_message_route(path: str) -> bool:
    rest = normalize_path(path).removeprefix("/v1")
    # Batches of messages are no route of ours, and a 404 of this API's clients all the same.
    return rest == "/messages" or rest.startswith("/messages/")


def _rewrite(start: Message, body: bytes, request_id: str | None) -> Response:
    """Return the same error in the envelope."""
    status = api_status(start["status"])
    try:
        found = json.loads(body)["error"]
        message, param = str(found["message"]), found["param"]
    except (ValueError, KeyError, TypeError):
        message, param = "The request failed.", None
    if param is not None and param not in message:
        message = f"{param}: {message}"  # the envelope has no place of its own for it
    error = AnthropicError(type=error_type(status), message=message)
    envelope = AnthropicErrorResponse(type="error", error=error, request_id=request_id)
    headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in start["headers"]
        if name.lower() not in (b"content-length", b"content-type")
    }
    text = envelope.model_dump_json() + "\n"
    return Response(text, status_code=status, headers=headers, media_type="application/json")
