"""JSON schemas on their way to the grammar library: prepared, bounded, and able to end.

The library enforces what it knows and refuses by name what it doesn't. What it doesn't notice is
looked for here: nesting that would be recursed into, and schemas that only endless JSON fulfils.
Pure.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from server.grammars.matching import GrammarError

Schema = dict[str, Any]

MAX_DEPTH = 64
MAX_NODES = 50_000
# Between two tokens of JSON: a blank or two, or a line break and an indentation. A model that
# likes blanks must not be able to write nothing else until it runs out of tokens.
WHITESPACE = r"[ \t]{1,2}|\n[ \t]{0,40}"
# Keys under which values are examples and no schemas.
_DATA_KEYS = frozenset({"const", "default", "enum", "example", "examples"})
_KNOWN_DIALECT = "json-schema.org/draft"
_CONTAINERS = frozenset({"array", "object"})


def prepare_schema(value: Any, *, lenient: bool = False) -> Schema:
    """Return a schema that can be handed to the library.

    Args:
        value: An object, a truth value, or the JSON text of either.
        lenient: Let keywords pass that cannot be enforced.

    Raises:
        GrammarError: It is no schema, is nested too deeply, or nothing finite fulfils it.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise GrammarError("it is not valid JSON") from None
    if value is True:
        value = {}
    if value is False:
        raise GrammarError("nothing fulfils the schema false")
    if not isinstance(value, dict):
        raise GrammarError("it is no JSON object")
    _check_size(value)
    if not _Endings(value).can_end():
        raise GrammarError("nothing finite fulfils it: it requires itself without end")
    options = {"whitespace_pattern": WHITESPACE, "lenient": lenient, "coerce_one_of": lenient}
    schema = {key: item for key, item in value.items() if key != "x-guidance"}
    dialect = schema.get("$schema")
    if not (isinstance(dialect, str) and _KNOWN_DIALECT in dialect):
        schema.pop("$schema", None)
    return {"x-guidance": options, **schema}


def _check_size(root: Schema) -> None:
    """Refuse what later code would recurse into for too long."""
    level: list[Any] = [root]
    num_nodes = 0
    for _ in range(MAX_DEPTH):
        num_nodes += len(level)
        if num_nodes > MAX_NODES:
            raise GrammarError(f"it has more than {MAX_NODES} values")
        level = [item for container in level for item in _children(container)]
        if not level:
            return
    raise GrammarError(f"it is nested deeper than {MAX_DEPTH}")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class _Endings:
    """Finds out whether some finite JSON may fulfil a schema, as far as references go.

    A reference ends if its target does with the references that are known to end: the set of
    these grows until it doesn't. Where in doubt, a schema ends.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._ending: set[str] = set()
        self._targets = {name: self._resolve(name) for name in _references(root)}

    def can_end(self) -> bool:
        """Return whether the root may be fulfilled."""
        grows = True
        while grows:
            found = {
                name
                for name, target in self._targets.items()
                if name not in self._ending and self._ends(target)
            }
            self._ending |= found
            grows = bool(found)
        return self._ends(self._root)

    def _ends(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return True
        if "const" in schema or "enum" in schema:
            return True
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._ending:
            return False
        if not all(map(self._ends, _listed(schema, "allOf"))):
            return False
        for key in ("anyOf", "oneOf"):
            options = _listed(schema, key)
            if options and not any(map(self._ends, options)):
                return False
        return self._may_be_scalar(schema) or self._containers_end(schema)

    def _may_be_scalar(self, schema: Schema) -> bool:
        """Return whether something without parts may fulfil the schema."""
        return not _kinds(schema) <= _CONTAINERS

    def _containers_end(self, schema: Schema) -> bool:
        """Return whether the parts that an object or an array must have may be fulfilled."""
        kinds = _kinds(schema)
        properties, required = schema.get("properties"), schema.get("required")
        parts = properties if isinstance(properties, dict) else {}
        names = required if isinstance(required, list) else []
        object_ends = all(self._ends(parts.get(name)) for name in names if isinstance(name, str))
        least = schema.get("minItems", 0)
        array_ends = not (isinstance(least, int) and least > 0) or (
            self._ends(schema.get("items"))
            and all(map(self._ends, _listed(schema, "prefixItems")[:least]))
        )
        return ("object" in kinds and object_ends) or ("array" in kinds and array_ends)

    def _resolve(self, reference: str) -> Any:
        """Return what a reference into the schema itself points at; None if it is another one."""
        if not reference.startswith("#"):
            return None
        target: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(part)
            elif isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            else:
                return None
        return target


def _kinds(schema: Schema) -> set[str]:
    """Return the types a schema names; none at all stand for any."""
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return {str(kind) for kind in listed}


def _listed(schema: Schema, key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _references(root: Schema) -> set[str]:
    """Return all references of a schema."""
    found: set[str] = set()
    pending: list[Any] = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                found.add(reference)
            pending += [item for key, item in value.items() if key not in _DATA_KEYS]
        elif isinstance(value, list):
            pending += value
    return found
