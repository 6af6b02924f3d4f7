"""From what a request asks for to the text that the grammar library compiles.

A `GrammarRecipe` is made on the event loop and says what it is about; its text is made on a thread
of the compiler. What is wrong with a schema's shape is said here, the rest by the library.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher, grammar_from

from api_schemas import Constraint, ConstraintKind
from server.grammars.matching import GrammarError
from server.grammars.schemas import prepare_schema

_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")


@dataclass(frozen=True, slots=True)
class GrammarRecipe:
    """How to make the text of a grammar.

    Attributes:
        name: What a client calls it.
        param: Path of the field that it comes from.
        error_code: Slug of the error if it does not compile.
        make: Returns the library's own format; equal texts are equal grammars. Raises GrammarError.
    """

    name: str
    param: str
    error_code: str
    make: Callable[[], str]

    def error_message(self, reason: str) -> str:
        """Return what to tell a client whose grammar does not compile."""
        if match := _UNKNOWN_KEYS.search(reason):
            names = match[1].replace('"', "")
            reason = f"the keyword {names} is not supported{reason[match.end() :]}"
        return f"{self.name} cannot be followed: {reason}."


_NAMES = {
    ConstraintKind.JSON_OBJECT: ("The JSON schema", "invalid_json_schema"),
    ConstraintKind.JSON_SCHEMA: ("The JSON schema", "invalid_json_schema"),
    ConstraintKind.REGEX: ("The regular expression", "invalid_regex"),
    ConstraintKind.CHOICE: ("The choice", "invalid_grammar"),
    ConstraintKind.GRAMMAR: ("The grammar", "invalid_grammar"),
}


def constraint_recipe(constraint: Constraint | None) -> GrammarRecipe | None:
    """Return the recipe of what a request asks for; None if it asks for nothing."""
    if constraint is None:
        return None
    name, code = _NAMES[constraint.kind]
    return GrammarRecipe(name, constraint.param, code, lambda: _text_of(constraint))


def _text_of(constraint: Constraint) -> str:
    value = constraint.value
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return LLMatcher.grammar_from_json_schema(prepare_schema({"type": "object"}))
        case ConstraintKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(prepare_schema(value))
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(value)
        case ConstraintKind.CHOICE:
            # Lark reads a text as JSON does.
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, value)))
        case ConstraintKind.GRAMMAR:
            try:
                return grammar_from("grammar", value)
            except ValueError as error:
                raise GrammarError(str(error)) from None
