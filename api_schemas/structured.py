"""What an answer must look like: the response format, and the other fields that say the same.

Source: https://platform.openai.com/docs/guides/structured-outputs; `structured_outputs` and the
`guided_*` fields after vLLM, `grammar` and `json_schema` after llama.cpp, `regex` and `ebnf` after
SGLang. All of them come down to one `Constraint`. Data only.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from api_schemas.base import Boolean, RequestModel, field_error

MAX_CHOICES = 1024


def _check_schema(value: Any) -> Any:
    """Refuse what is no schema whatever it holds."""
    if not isinstance(value, dict | bool | str):
        raise PydanticCustomError("schema", "a JSON schema is an object, or its JSON text")
    return value


# An object, a truth value, or the JSON text of either.
JsonSchema = Annotated[
    Any,
    AfterValidator(_check_schema),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}),
]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=65536)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]


class ConstraintKind(Enum):
    """How a constraint is written."""

    JSON_OBJECT = "any JSON object"
    JSON_SCHEMA = "a JSON schema"
    REGEX = "a regular expression"
    CHOICE = "one of several texts"
    GRAMMAR = "a grammar in Lark or GBNF"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must follow.

    Attributes:
        kind: How it is written.
        value: The schema, the texts or the text; None for any JSON object.
        param: Path of the field that asks for it.
    """

    kind: ConstraintKind
    value: Any
    param: str


class JsonSchemaFormat(RequestModel):
    """A named schema.

    Attributes:
        schema_: The schema; left out, any JSON value will do.
        strict: Changes nothing: answers follow the schema in any case.
    """

    name: Annotated[str, Field(max_length=256)] = "response"
    description: str | None = None
    schema_: JsonSchema = Field(default=True, alias="schema")
    strict: Boolean = False


class ResponseFormat(RequestModel):
    """The field `response_format`.

    Attributes:
        json_schema: Needed by the type of this name.
        schema_: A schema beside the type json_object, as llama.cpp takes it.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: JsonSchema | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        """Refuse the type json_schema without a schema."""
        if self.type == "json_schema" and self.json_schema is None:
            message = "response_format of type json_schema needs json_schema."
            raise field_error("json_schema", message)
        return self

    def constraint(self) -> Constraint | None:
        """Return what the format asks for; None for plain text."""
        if self.type == "text":
            return None
        if self.type == "json_schema" and self.json_schema is not None:
            param = "response_format.json_schema.schema"
            return Constraint(ConstraintKind.JSON_SCHEMA, self.json_schema.schema_, param)
        if self.schema_ is not None:
            param = "response_format.schema"
            return Constraint(ConstraintKind.JSON_SCHEMA, self.schema_, param)
        return Constraint(ConstraintKind.JSON_OBJECT, None, "response_format")


class StructuredOutputs(RequestModel):
    """The field `structured_outputs`: exactly one of its keys says what the answer follows."""

    json_: JsonSchema | None = Field(default=None, alias="json")
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Choices | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    json_object: Boolean = False

    @model_validator(mode="after")
    def _check_known(self) -> Self:
        """Refuse keys that would otherwise be lost without a word."""
        if self.model_extra:
            name = sorted(self.model_extra)[0]
            raise field_error(name[:64], f"structured_outputs has no {name[:64]!r} here.")
        return self

    def constraints(self) -> list[Constraint]:
        """Return what the keys ask for."""
        found = [
            Constraint(kind, value, f"structured_outputs.{name}")
            for name, kind, value in (
                ("json", ConstraintKind.JSON_SCHEMA, self.json_),
                ("regex", ConstraintKind.REGEX, self.regex),
                ("choice", ConstraintKind.CHOICE, self.choice),
                ("grammar", ConstraintKind.GRAMMAR, self.grammar),
            )
            if value is not None
        ]
        if self.json_object:
            param = "structured_outputs.json_object"
            found.append(Constraint(ConstraintKind.JSON_OBJECT, None, param))
        return found


class ConstraintFields(RequestModel):
    """The fields by which a request says what its answer must follow; at most one may.

    The meaning of each field stands in `api_schemas.support`.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: JsonSchema | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None

    @model_validator(mode="after")
    def _check_one_constraint(self) -> Self:
        """Refuse two fields that ask for different things."""
        found = self._constraints()
        if len(found) > 1:
            first, second = found[0].param, found[1].param
            raise field_error(second, f"{first} and {second} exclude each other.")
        return self

    def constraint(self) -> Constraint | None:
        """Return what the answer must follow; None if it is free."""
        found = self._constraints()
        return found[0] if found else None

    def _constraints(self) -> list[Constraint]:
        """Return what all fields ask for; empty values ask for nothing."""
        found = []
        if self.response_format is not None:
            found.append(self.response_format.constraint())
        if self.structured_outputs is not None:
            found += self.structured_outputs.constraints()
        for name, kind in _PLAIN_FIELDS.items():
            value = getattr(self, name)
            if value is not None and value not in ("", [], {}):
                found.append(Constraint(kind, value, name))
        return [constraint for constraint in found if constraint is not None]


_PLAIN_FIELDS = {
    "guided_json": ConstraintKind.JSON_SCHEMA,
    "guided_regex": ConstraintKind.REGEX,
    "guided_choice": ConstraintKind.CHOICE,
    "guided_grammar": ConstraintKind.GRAMMAR,
    "json_schema": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "grammar": ConstraintKind.GRAMMAR,
    "ebnf": ConstraintKind.GRAMMAR,
}
