"""Reads the requests of an input file, all or none. Pure."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_schemas import BatchError
from server.request_body import parse_json
from server.request_errors import RequestError

MAX_ERRORS = 50
MAX_CUSTOM_ID = 512
RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request.

    Attributes:
        number: Its line, from 1.
        custom_id: What the client calls it.
        body: The body, as JSON text.
    """

    number: int
    custom_id: str
    body: bytes


def read_lines(
    path: Path, endpoint: str, *, max_requests: int
) -> tuple[list[BatchLine], list[BatchError]]:
    """Return the requests of a file, or what is wrong with it.

    Args:
        path: JSON lines; blank ones are skipped.
        endpoint: Where all of them go.
        max_requests: Most lines.
    """
    lines: list[BatchLine] = []
    errors: list[BatchError] = []
    seen: set[str] = set()
    if not path.exists():
        return [], [_error(None, "The file was deleted.", "input_file_id", "file_not_found")]
    with path.open("rb") as content:
        for number, data in enumerate(content, start=1):
            if not data.strip():
                continue
            if len(lines) == max_requests:
                text = f"A batch has at most {max_requests} requests on this server."
                errors.append(_error(number, text, None, "too_many_requests"))
                break
            try:
                line = _read_line(number, data, endpoint)
                if line.custom_id in seen:
                    raise RequestError("custom_id is used twice.", param="custom_id")
            except RequestError as error:
                errors.append(_error(number, str(error), error.param, error.code))
                if len(errors) == MAX_ERRORS:
                    break
                continue
            seen.add(line.custom_id)
            lines.append(line)
    if not lines and not errors:
        errors.append(_error(None, "The file has no requests.", None, "empty_file"))
    return lines, errors


def _read_line(number: int, data: bytes, endpoint: str) -> BatchLine:
    """Read one request.

    Raises:
        RequestError: Names the field that is wrong.
    """
    line = parse_json(data)
    custom_id = line.get("custom_id")
    if not (isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID):
        message = f"custom_id is a text of 1 to {MAX_CUSTOM_ID} characters."
        raise RequestError(message, param="custom_id")
    if line.get("method") != "POST":
        raise RequestError("method is POST.", param="method")
    if line.get("url") != endpoint:
        raise RequestError(f"url is {endpoint}, the endpoint of the batch.", param="url")
    body: Any = line.get("body")
    if not isinstance(body, dict):
        raise RequestError("body is an object.", param="body")
    for name in ("stream", "background"):
        if body.get(name):
            raise RequestError(f"{name} has no place in a batch.", param=f"body.{name}")
    if endpoint == RESPONSES:
        # Nobody comes back to what is in the output file.
        body = {"store": False, **body}
    return BatchLine(number, custom_id, json.dumps(body).encode())


def _error(line: int | None, message: str, param: str | None, code: str) -> BatchError:
    return BatchError(code=code, line=line, message=message, param=param)
