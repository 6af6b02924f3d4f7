"""Errors about a field, under the name that a route's clients know it by.

Several routes are made from parts that speak of another route's fields. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import ValidationError

from engine import ClientError
from server.error_handlers import describe_error
from server.request_errors import RequestError


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Let client errors of a with block name a route's own fields.

    Args:
        names: Inner name, or the beginning of a path, to the name on the wire.

    Raises:
        RequestError: What was raised, with its names replaced in text and path.
    """
    try:
        yield
    except (RequestError, ValidationError, ClientError) as error:
        answer = describe_error(error)
        if answer.status == 429:  # says when to come again, and names no field
            raise
        param, found = answer.error.param, answer.error
        raise RequestError(
            _rename(found.message, names),
            param=None if param is None else _rename(param, names),
            code=found.code or "invalid_value",
            status=answer.status,
        ) from None


def _rename(text: str, names: Mapping[str, str]) -> str:
    """Replace whole names, the longest that fits first."""
    longest_first = sorted(names, key=len, reverse=True)
    pattern = r"(?<![\w.])(" + "|".join(map(re.escape, longest_first)) + r")(?!\w)"
    return re.sub(pattern, lambda match: names[match[1]], text)
