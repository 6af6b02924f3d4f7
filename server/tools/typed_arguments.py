"""Arguments that a model writes as plain text, one by one, made into JSON by their schema. Pure."""

import json
from collections.abc import Iterable
from typing import Any

from api_schemas import FunctionDefinition
from server.grammars.endings import Schema, resolve
from server.tools.calls import load_json

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def typed_arguments(pairs: Iterable[tuple[str, str]], function: FunctionDefinition) -> str:
    """Return the JSON text of the arguments, numbers to the digit.

    Args:
        pairs: Names and texts; what is no text by the schema is JSON, unless it can't be read.
        function: Whose arguments they are.
    """
    schema = function.parameters or {}
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    members = (
        f"{_quoted(name)}: {_value(text, _types(known.get(name), schema))}"
        for name, text in dict(pairs).items()  # of those that come twice the last counts
    )
    return "{" + ", ".join(members) + "}"


def _value(text: str, types: set[str]) -> str:
    """Return the JSON text of a value; what is none of the types, and no JSON, is a text."""
    if types == {"string"}:
        return _quoted(text)
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        return _quoted(text)
    if "string" in types and not _types_of(value) & (types - {"string"}):
        return _quoted(text)
    return text.strip()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Schema) -> set[str]:
    """Return the types that a parameter may have; none if the schema doesn't say."""
    types: set[str] = set()
    pending, seen = [schema], set()
    while pending:
        part = pending.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        kinds = part.get("type")
        if "const" in part:
            types |= _types_of(part["const"])
        elif isinstance(part.get("enum"), list):
            types.update(*map(_types_of, part["enum"]))
        elif kinds is not None:
            types.update(map(str, kinds) if isinstance(kinds, list) else [str(kinds)])
        else:
            if isinstance(part.get("$ref"), str):
                pending.append(resolve(root, part["$ref"]))
            for key in ("anyOf", "oneOf", "allOf"):
                options = part.get(key)
                pending += options if isinstance(options, list) else []
    return types


def _types_of(value: Any) -> set[str]:
    """Return the types of a JSON value; a whole number is a number, too."""
    name = _TYPES.get(type(value)) or ("object" if isinstance(value, dict) else "array")
    return {name, "number"} if name == "integer" else {name}
