"""From what a request asks for to the text that the grammar library compiles.

A `GrammarRecipe` is made on the event loop and says what it is about; its key and its text are made
on a thread of the compiler. What is wrong with a schema's shape is said here, the rest by the
library.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from llguidance import LLMatcher, grammar_from

from api_schemas import Constraint, ConstraintKind
from server.grammars.matching import GrammarError
from server.grammars.schemas import prepare_schema, schema_grammar

MAX_SOURCE_CHARACTERS = 512 * 1024
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")


@dataclass(frozen=True, slots=True)
class GrammarRecipe:
    """How to make the text of a grammar.

    Attributes:
        name: What a client calls it.
        param: Path of the field that it comes from.
        error_code: Slug of the error if it does not compile.
        source: JSON values that say, for one model, all that the grammar depends on.
        make: Returns the library's own format. Raises GrammarError.
    """

    name: str
    param: str
    error_code: str
    source: tuple[Any, ...]
    make: Callable[[], str]

    def key(self) -> str:
        """Return a text that stands for the source; equal keys are equal grammars.

        Raises:
            GrammarError: The source is too long for anything to be made of it.
        """
        text = json.dumps(self.source, ensure_ascii=False)
        if len(text) > MAX_SOURCE_CHARACTERS:
            raise GrammarError(f"it is longer than {MAX_SOURCE_CHARACTERS} characters")
        return hashlib.sha256(text.encode()).hexdigest()

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
    source = (constraint.kind.name, constraint.value)
    return GrammarRecipe(name, constraint.param, code, source, partial(_text_of, constraint))


def _text_of(constraint: Constraint) -> str:
    value = constraint.value
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return schema_grammar(prepare_schema({"type": "object"}))
        case ConstraintKind.JSON_SCHEMA:
            return schema_grammar(prepare_schema(value))
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
