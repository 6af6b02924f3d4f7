"""From a constraint to the text that the grammar library compiles.

Nothing is compiled here; what is wrong with a schema's shape is said here, the rest by the
library. Pure; runs on the compiler's threads.
"""

import json
import re
from dataclasses import dataclass

from llguidance import LLMatcher, grammar_from

from api_schemas import Constraint, ConstraintKind
from server.grammars.matching import GrammarError
from server.grammars.schemas import prepare_schema

_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar as the library reads it.

    Attributes:
        text: The library's own format; equal texts are equal grammars.
        name: What a client calls it.
        param: Path of the field that it comes from.
        error_code: Slug of the error if it does not compile.
    """

    text: str
    name: str
    param: str
    error_code: str

    def error_message(self, reason: str) -> str:
        """Return what to tell a client whose grammar does not compile."""
        if match := _UNKNOWN_KEYS.search(reason):
            names = match[1].replace('"', "")
            reason = f"the keyword {names} is not supported"
        return f"{self.name} cannot be followed: {reason}."


_NAMES = {
    ConstraintKind.JSON_OBJECT: ("The JSON schema", "invalid_json_schema"),
    ConstraintKind.JSON_SCHEMA: ("The JSON schema", "invalid_json_schema"),
    ConstraintKind.REGEX: ("The regular expression", "invalid_regex"),
    ConstraintKind.CHOICE: ("The choice", "invalid_grammar"),
    ConstraintKind.GRAMMAR: ("The grammar", "invalid_grammar"),
}


def source_of(constraint: Constraint) -> GrammarSource:
    """Return the library's text for a constraint.

    Raises:
        GrammarError: The value is nothing that could be compiled.
    """
    name, code = _NAMES[constraint.kind]
    return GrammarSource(_text_of(constraint), name, constraint.param, code)


def describe_source(constraint: Constraint) -> GrammarSource:
    """Return a source without a text, for the message about a constraint that has none."""
    name, code = _NAMES[constraint.kind]
    return GrammarSource("", name, constraint.param, code)


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
