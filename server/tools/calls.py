"""The calls of functions that are read in a text, and the JSON of their arguments. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from api_schemas import FunctionDefinition
from server.tools.json_reader import BLANKS, MAX_DEPTH, JsonMark, JsonReader

Functions = Mapping[str, FunctionDefinition]

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was read.

    Attributes:
        name: One of the request's functions.
        arguments: The JSON text of an object, or the beginning of it.
    """

    name: str
    arguments: str


def escape_surrogates(text: str) -> str:
    """Return the same JSON text as text that can be sent: a half of a character as its escape.

    A model may write such a half as an escape in a text, and formats that read texts would give it
    back as what no encoding can carry.
    """
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def check_object(text: str) -> str:
    """Return the JSON text of an object, without blanks around it.

    Raises:
        ValueError: It is none.
    """
    reader = JsonReader("{")
    if any(reader.feed(one) is JsonMark.WRONG for one in text) or not reader.is_whole:
        raise ValueError("it is no object")
    return text.strip(BLANKS)


def load_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is none, or too deep for an argument; NaN and the infinities are no JSON.
    """
    value = json.loads(text, parse_constant=_refuse)
    if is_deeper(value, MAX_DEPTH - 1):
        raise ValueError("it is too deep")
    return value


def is_deeper(value: Any, num_levels: int) -> bool:
    """Return whether a JSON value has more objects and lists in one another than these."""
    if not isinstance(value, dict | list):
        return False
    members = value.values() if isinstance(value, dict) else value
    return num_levels == 0 or any(is_deeper(member, num_levels - 1) for member in members)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
