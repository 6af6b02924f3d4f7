"""From the bytes of a request to a validated model.

JSON is read strictly: no NaN, no infinities, no lone surrogates, bounded size and nesting. Long
bodies are parsed in a thread, so that the event loop is never held. Runs on the event loop.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from api_schemas import RequestModel
from server.request_errors import RequestError

MAX_NESTING = 64
LONG_BODY_BYTES = 64 * 1024
MAX_DISCARDED_BYTES = 32 * 1024 * 1024

Body = TypeVar("Body", bound=RequestModel)
Parsed = TypeVar("Parsed")


async def read_body(request: Request, model: type[Body], *, max_bytes: int) -> Body:
    """Read, parse and validate the body of a request.

    Raises:
        RequestError: It is too large or no JSON object (413, 400).
        pydantic.ValidationError: A field is wrong; the handler of the application answers it.
        ClientDisconnect: The client left before it had sent everything.
    """
    return await read_parsed(request, model.model_validate, max_bytes=max_bytes)


async def read_parsed(
    request: Request, parse: Callable[[dict[str, Any]], Parsed], *, max_bytes: int
) -> Parsed:
    """Read the body of a request and make something of the JSON object that it is.

    Args:
        request: Its body has not been read.
        parse: Called in a thread if the body is long; what it raises is raised here.
        max_bytes: The largest body.

    Raises:
        RequestError, ClientDisconnect: See `read_body`.
    """
    data = await _read_bytes(request, max_bytes)
    if len(data) > LONG_BODY_BYTES:
        return await asyncio.to_thread(lambda: parse(parse_json(data)))
    return parse(parse_json(data))


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    """Collect the body; what is too large is read on and thrown away, up to a point.

    A client that is still sending when its connection is closed sees a reset and no answer.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes + MAX_DISCARDED_BYTES:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes <= max_bytes:
            chunks.append(chunk)
            continue
        chunks.clear()
        if num_bytes > max_bytes + MAX_DISCARDED_BYTES:
            break
    if num_bytes > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(chunks)


def bound_body(request: Request, max_bytes: int) -> Request:
    """Return the same request, whose body ends with an error when it is too large.

    Raises:
        RequestError: The request says itself that it is (413).
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    num_bytes = 0

    async def receive() -> Message:
        nonlocal num_bytes
        message = await request.receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        return message

    return Request(request.scope, receive)


def _too_large(max_bytes: int) -> RequestError:
    message = f"The request body is larger than {max_bytes} bytes."
    return RequestError(message, code="request_too_large", status=413)


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly.

    Raises:
        RequestError: The bytes are no such object; says why.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise _invalid_json("The request body is not UTF-8.") from None
    except RecursionError:
        raise _invalid_json(f"The request body is nested deeper than {MAX_NESTING}.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _invalid_json(f"The request body is not valid JSON: {error.msg} ({where}).") from None
    except ValueError:
        raise _invalid_json("The request body holds a number with too many digits.") from None
    if not isinstance(value, dict):
        raise _invalid_json("The request body is not a JSON object.")
    _check_values(value)
    return value


def _invalid_json(message: str) -> RequestError:
    return RequestError(message, code="invalid_json")


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid_json(f"The request body is not valid JSON: {name} is no JSON number.")


def _check_values(root: dict[str, Any]) -> None:
    """Refuse nesting that later code would recurse into, and text that is no Unicode text."""
    level: list[Any] = [root]
    for _ in range(MAX_NESTING):
        deeper: list[Any] = []
        for container in level:
            items = container
            if isinstance(container, dict):
                _check_texts(container)
                items = container.values()
            _check_texts(items)
            deeper.extend(item for item in items if isinstance(item, dict | list))
        if not deeper:
            return
        level = deeper
    raise _invalid_json(f"The request body is nested deeper than {MAX_NESTING}.")


def _check_texts(items: Any) -> None:
    """Refuse lone surrogates, which no tokenizer and no answer could carry."""
    for item in items:
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise _invalid_json("The request body holds a lone surrogate.") from None


__all__ = ["ClientDisconnect", "bound_body", "parse_json", "read_body", "read_parsed"]
