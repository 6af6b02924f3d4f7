"""JSON schemas on their way to the grammar library: prepared, bounded, and able to end.

The library enforces what it knows and refuses by name what it doesn't. What it doesn't notice is
looked for here: nesting that would be recursed into, and schemas that only endless JSON fulfils.
Pure.
"""

import json
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from server.grammars.endings import Schema, can_end
from server.grammars.matching import GrammarError

MAX_DEPTH = 64
MAX_NODES = 50_000
# Between two tokens of JSON: a blank or two, or a line break and an indentation. A model that
# likes blanks must not be able to write nothing else until it runs out of tokens.
WHITESPACE = r"[ \t]{1,2}|\n[ \t]{0,40}"
_KNOWN_DIALECT = "json-schema.org/draft"
_COUNTS = frozenset(
    f"{bound}{counted}"
    for bound in ("min", "max")
    for counted in ("Length", "Items", "Properties", "Contains")
)
# The values of these are data, in which a count's name means nothing.
_DATA = frozenset({"const", "enum", "default", "examples"})
# The keys in these are names, which may be those of keywords.
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
MAX_COUNT = 2**32 - 1  # what the library can count to; no answer comes near


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
    value = _with_plain_counts(value)
    if not can_end(value):
        raise GrammarError("nothing finite fulfils it: it requires itself without end")
    options = {"whitespace_pattern": WHITESPACE, "lenient": lenient, "coerce_one_of": lenient}
    schema = {key: item for key, item in value.items() if key != "x-guidance"}
    dialect = schema.get("$schema")
    if not (isinstance(dialect, str) and _KNOWN_DIALECT in dialect):
        schema.pop("$schema", None)
    return {"x-guidance": options, **schema}


def schema_grammar(schema: Schema) -> str:
    """Return a prepared schema in the library's own format.

    Raises:
        GrammarError: It holds what the library cannot read.
    """
    try:
        return LLMatcher.grammar_from_json_schema(schema)
    except ValueError:
        raise GrammarError("it holds a number that is too long, or no Unicode text") from None


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


def _with_plain_counts(schema: Any) -> Any:
    """Return a copy in which every count is written as the library reads it."""
    if isinstance(schema, list):
        return [_with_plain_counts(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _plain_part(key, item) for key, item in schema.items()}
    return schema


def _plain_part(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _COUNTS and isinstance(value, int | float):
        return _plain_count(value)
    if keyword in _MAPS and isinstance(value, dict):
        return {name: _with_plain_counts(item) for name, item in value.items()}
    return _with_plain_counts(value)


def _plain_count(value: int | float) -> int | float:
    """Return a count as an integer; what counts nothing is left for the library to refuse.

    JSON has one kind of number: 2.0 is an integer, and one may be larger than any answer is long.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return min(value, MAX_COUNT) if isinstance(value, int) else value


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
