"""The grammar of an answer that must be a call. Pure."""

import json
from typing import Any

from llguidance import LLMatcher

from api_schemas import FunctionDefinition, ToolUse
from server.grammars.composition import SpecialIds, literal
from server.grammars.matching import GrammarError
from server.grammars.schemas import prepare_schema, schema_grammar
from server.tools.call_format import Layout

MAX_FORCED_CALLS = 8


def forced_calls(use: ToolUse, layout: Layout, special_ids: SpecialIds) -> str:
    """Return the grammar of an answer that calls one function or more.

    Args:
        use: The functions, and how many calls may be made.
        layout: What stands around the calls.
        special_ids: The special tokens by their texts; a grammar names them by id.

    Raises:
        GrammarError: The parameters of a function cannot be followed; names it.
    """
    rules = []
    for number, function in enumerate(use.functions):
        opening = f'{{"name": {json.dumps(function.name)}, "{layout.key}": '
        schema = _arguments_schema(function)
        rules.append(f'call_{number}: {json.dumps(opening)} %json {json.dumps(schema)} "}}"')
    names = " | ".join(f"call_{number}" for number in range(len(use.functions)))
    more = "" if use.is_single else f" (between call){{0,{MAX_FORCED_CALLS - 1}}}"
    return "\n".join(
        (
            f"start: before call{more} after",
            f"before: {literal(layout.before, special_ids)}",
            f"between: {literal(layout.between, special_ids)}",
            f"after: {literal(layout.after, special_ids)}",
            f"call: {names}",
            *rules,
        )
    )


def _arguments_schema(function: FunctionDefinition) -> dict[str, Any]:
    """Return the schema of a function's arguments, checked by itself so that an error names it."""
    given = function.parameters or {"additionalProperties": False}
    if given.get("type", "object") != "object":
        raise GrammarError(f"the parameters of {function.name} are no object")
    try:
        schema = prepare_schema({"type": "object", **given}, lenient=not function.strict)
        problem = LLMatcher.validate_grammar(schema_grammar(schema))
    except GrammarError as error:
        problem = str(error)
    if problem:
        raise GrammarError(f"{problem} (in the parameters of {function.name})")
    return schema
