"""From any error to one HTTP answer: the table of engine errors and the handlers that use it.

Every body has the four keys of `api_schemas.errors`. What the client cannot mend is answered with
constant text: no traceback, path or representation leaves the process. Runs on the event loop.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api_schemas import ErrorObject, ErrorResponse
from engine import (
    CacheTooSmallError,
    ClientError,
    DeadlineExceededError,
    DuplicateRequestError,
    EngineDeadError,
    EngineError,
    EngineStoppingError,
    GrammarFailedError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    QueueTimeoutError,
    RequestFailedError,
    ServerError,
    UnsupportedConfigError,
    UnsupportedModelError,
)
from server.allowed_methods import allowed_methods
from server.request_errors import RequestError

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARACTERS = 1000
RETRY_AFTER_SECONDS = 5
INTERNAL_MESSAGE = "The server had an error while processing the request."
# Engine names of what a client knows under another name.
WIRE_NAMES = {
    "input_ids": "prompt",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
}


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """How one kind of engine error is answered.

    Attributes:
        status: HTTP status.
        type: The error family on the wire.
        code: The slug on the wire.
        message: Constant text in place of the error's own, which may hold internals.
    """

    status: int
    type: str
    code: str
    message: str | None = None


_UNSUPPORTED = ErrorMapping(500, "server_error", "internal_error", INTERNAL_MESSAGE)
_INVALID = ErrorMapping(400, "invalid_request_error", "invalid_value")

ERROR_TABLE: Mapping[type[EngineError], ErrorMapping] = {
    InvalidRequestError: _INVALID,
    GrammarFailedError: ErrorMapping(400, "invalid_request_error", "grammar_failed"),
    PromptTooLongError: ErrorMapping(400, "invalid_request_error", "context_length_exceeded"),
    QueueFullError: ErrorMapping(429, "rate_limit_error", "rate_limit_exceeded"),
    # Ids are made here and are unique, so that this one is our own fault.
    DuplicateRequestError: _UNSUPPORTED,
    EngineStoppingError: ErrorMapping(
        503, "server_error", "engine_stopping", "The server is shutting down."
    ),
    EngineDeadError: ErrorMapping(
        503, "server_error", "engine_dead", "The engine has stopped because of an error."
    ),
    RequestFailedError: ErrorMapping(
        500, "server_error", "request_failed", "The request failed while it ran."
    ),
    QueueTimeoutError: ErrorMapping(
        503, "server_error", "queue_timeout", "The request waited too long; send it again."
    ),
    DeadlineExceededError: ErrorMapping(504, "server_error", "deadline_exceeded"),
    UnsupportedModelError: _UNSUPPORTED,
    UnsupportedConfigError: _UNSUPPORTED,
    CacheTooSmallError: _UNSUPPORTED,
    ClientError: _INVALID,
    ServerError: _UNSUPPORTED,
    EngineError: _UNSUPPORTED,
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error ready to be sent.

    Attributes:
        status: HTTP status, unless the answer has begun.
        error: The object under the key `error`.
        headers: Further response headers.
    """

    status: int
    error: ErrorObject
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return the JSON text; a newline ends it for the reader of a terminal."""
        return ErrorResponse(error=self.error).model_dump_json().encode() + b"\n"

    def response(self) -> Response:
        """Return the HTTP answer."""
        return Response(
            self.body(),
            status_code=self.status,
            headers=dict(self.headers),
            media_type="application/json",
        )


def make_answer(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> ErrorAnswer:
    """Build an answer; the family follows from the status."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    if status == 429:
        kind = "rate_limit_error"
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else {}
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    error = ErrorObject(message=_shorten(message), type=kind, param=param, code=code)
    return ErrorAnswer(status, error, headers)


def describe_error(error: BaseException) -> ErrorAnswer:
    """Return the answer to any error that ends a request."""
    if isinstance(error, RequestError):
        return make_answer(error.status, str(error), param=error.param, code=error.code)
    if isinstance(error, ValidationError):
        return _describe_validation(error)
    if isinstance(error, RequestValidationError):
        return _describe_parameters(error)
    if isinstance(error, EngineError):
        return _describe_engine_error(error)
    if isinstance(error, HTTPException):
        return _describe_http_exception(error)
    if isinstance(error, ClientDisconnect):
        return make_answer(499, "The client closed the connection.", code="client_disconnected")
    return make_answer(500, INTERNAL_MESSAGE, code="internal_error")


def _describe_engine_error(error: EngineError) -> ErrorAnswer:
    """Look the error up in the table, nearest class first."""
    mapping = next(ERROR_TABLE[cls] for cls in type(error).__mro__ if cls in ERROR_TABLE)
    param = None
    if isinstance(error, InvalidRequestError):
        param = WIRE_NAMES.get(error.param, error.param)
    elif isinstance(error, PromptTooLongError):
        param = "prompt"
    message = _shorten(mapping.message or _in_wire_names(error))
    headers = {}
    if mapping.status in (429, 503):
        seconds = getattr(error, "retry_after_seconds", RETRY_AFTER_SECONDS)
        headers["Retry-After"] = str(max(1, math.ceil(seconds)))
    body = ErrorObject(message=message, type=mapping.type, param=param, code=mapping.code)
    return ErrorAnswer(mapping.status, body, headers)


def _in_wire_names(error: EngineError) -> str:
    """Return the error's text with the names that clients know."""
    text = str(error)
    if isinstance(error, InvalidRequestError) and error.param in WIRE_NAMES:
        return text.replace(error.param, WIRE_NAMES[error.param])
    return text


def _describe_validation(error: ValidationError) -> ErrorAnswer:
    """Say the first thing that is wrong, in words of the wire."""
    details = error.errors(include_url=False, include_input=False)
    first = details[0]
    param = _field_path(first["loc"], (first.get("ctx") or {}).get("param"))
    message = first["msg"]
    if first["type"] != "request":
        message = f"{param}: {message}." if param else f"{message}."
    if len(details) > 1:
        message += f" ({len(details) - 1} more)"
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return make_answer(400, message, param=param, code=code)


def _describe_parameters(error: RequestValidationError) -> ErrorAnswer:
    """Say the first thing that is wrong with what stands in the address."""
    first = error.errors()[0]
    param = _field_path(first["loc"][1:], None)  # it begins with "query" or "path"
    message = f"{param}: {first['msg']}."
    return make_answer(400, message, param=param, code="invalid_value")


def _field_path(location: Sequence[Any], param: str | None) -> str | None:
    """Join where pydantic stood and what the check itself named."""
    parts = [str(part) for part in location]
    if param is not None:
        if parts and parts[-1] == param.split(".", 1)[0]:
            parts.pop()
        parts.append(param)
    return ".".join(parts)[:256] or None


def _describe_http_exception(error: HTTPException) -> ErrorAnswer:
    """Give the framework's own refusals (404, 405) our body."""
    texts = {404: "There is nothing at this path.", 405: "The path does not take this method."}
    codes = {404: "not_found", 405: "method_not_allowed"}
    message = texts.get(error.status_code, str(error.detail))
    answer = make_answer(error.status_code, message, code=codes.get(error.status_code))
    return ErrorAnswer(answer.status, answer.error, {**answer.headers, **(error.headers or {})})


def _shorten(message: str) -> str:
    """Bound a text that may quote the client."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[:MAX_MESSAGE_CHARACTERS] + "..."


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer an error; those of our own making are logged with their traceback."""
    answer = describe_error(error)
    if answer.status == 405:
        # The router names the methods of one of the path's routes only.
        allow = {"Allow": ", ".join(allowed_methods(request.scope))}
        answer = ErrorAnswer(answer.status, answer.error, {**answer.headers, **allow})
    if isinstance(error, QueueFullError):
        answer = replace(answer, status=request.app.state.server.settings.server.overload_status)
    if answer.status == 500 and not isinstance(error, RequestError):
        logger.error("a request failed", exc_info=error)
    return answer.response()


def install_error_handlers(app: FastAPI) -> None:
    """Let the application answer every known error from here."""
    for kind in (
        RequestError,
        ValidationError,
        RequestValidationError,
        EngineError,
        HTTPException,
        ClientDisconnect,
    ):
        app.add_exception_handler(kind, _answer_error)
