"""Arguments that a model writes as plain text, one by one, made into JSON by their schema. Pure."""

import json
from collections.abc import Iterable
from typing import Any

from api_schemas import FunctionDefinition


def typed_arguments(pairs: Iterable[tuple[str, str]], function: FunctionDefinition) -> str:
    """Return the JSON text of the arguments.

    Args:
        pairs: Names and texts; what is no text by the schema is JSON, unless it can't be read.
        function: Whose arguments they are.
    """
    kinds = _kinds(function.parameters or {})
    arguments = {name: _value(text, kinds.get(name)) for name, text in pairs}
    return json.dumps(arguments, ensure_ascii=False)


def _kinds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what the schema says of the type of each parameter."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {
        name: entry.get("type") for name, entry in properties.items() if isinstance(entry, dict)
    }


def _value(text: str, kind: Any) -> Any:
    """Return a parameter's value; what is no JSON is a text."""
    if kind == "string":
        return text
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
