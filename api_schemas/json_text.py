"""JSON texts that stand in other JSON as a text: the arguments of calls. Pure."""

import json
import re
from typing import Any

_HALF = re.compile("[\ud800-\udfff]")
_HALF_AS_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def load_json_text(text: str) -> Any:
    """Return the value of a JSON text, with U+FFFD for each half of a character in it.

    A model, or a client, may write such a half as an escape; no tokenizer takes it and no answer
    can hold it as the character that it is.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is too deep.
    """
    value = json.loads(text)
    return _whole_characters(value) if _HALF_AS_ESCAPE.search(text) else value


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value
