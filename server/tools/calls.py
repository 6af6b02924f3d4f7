"""Reading calls out of JSON, without losing a digit of what the model wrote. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from api_schemas import FunctionDefinition

Functions = Mapping[str, FunctionDefinition]

_BLANKS = " \t\r\n"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was read.

    Attributes:
        name: One of the request's functions.
        arguments: The JSON text of an object.
    """

    name: str
    arguments: str


def read_json_calls(text: str, functions: Functions) -> list[Call] | None:
    """Return the calls in the JSON text of an object or of a list of them.

    Args:
        text: The whole text.
        functions: The functions that may be called, by name.

    Returns:
        None if it is something else, or calls something else.
    """
    try:
        items = _split_list(text) if text.lstrip(_BLANKS).startswith("[") else [text]
        calls = [_read_call(item, functions) for item in items]
    except (ValueError, RecursionError):
        return None
    return calls or None


def _read_call(text: str, functions: Functions) -> Call:
    members = _split_object(text)
    if "function" in members and "name" not in members:
        members = _split_object(members["function"])
    name = json.loads(members["name"]) if "name" in members else None
    if not isinstance(name, str) or name not in functions:
        raise ValueError("it calls none of the functions")
    arguments = members.get("arguments", members.get("parameters", "{}"))
    if arguments.startswith('"'):  # the text of an object, as the wire has it
        arguments = json.loads(arguments) or "{}"
    elif arguments == "null":
        arguments = "{}"
    return Call(name, check_object(arguments))


def escape_surrogates(text: str) -> str:
    """Return the same JSON text as text that can be sent: a half of a character as its escape.

    A model may write such a half as an escape in a text, and formats that read texts would give it
    back as what no encoding can carry.
    """
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def check_object(text: str) -> str:
    """Return the JSON text of an object.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(load_json(text), dict):
        raise ValueError("it is no object")
    return text.strip(_BLANKS)


def load_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is none; NaN and the infinities are no JSON.
    """
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _split_object(text: str) -> dict[str, str]:
    """Return the members of an object, their values as they are written."""
    if not isinstance(load_json(text), dict):
        raise ValueError("it is no object")
    members: dict[str, str] = {}
    place = _skip(text, text.index("{") + 1, _BLANKS)
    while text[place] != "}":
        key, place = _DECODER.raw_decode(text, place)
        start = _skip(text, place, _BLANKS + ":")
        _, place = _DECODER.raw_decode(text, start)
        members[key] = text[start:place]
        place = _skip(text, place, _BLANKS + ",")
    return members


def _split_list(text: str) -> list[str]:
    """Return the items of a list as they are written."""
    if not isinstance(load_json(text), list):
        raise ValueError("it is no list")
    items = []
    place = _skip(text, text.index("[") + 1, _BLANKS)
    while text[place] != "]":
        _, end = _DECODER.raw_decode(text, place)
        items.append(text[place:end])
        place = _skip(text, end, _BLANKS + ",")
    return items


def _skip(text: str, place: int, characters: str) -> int:
    while text[place] in characters:
        place += 1
    return place
