"""A text becomes what its schema says; where that leaves a choice, what it looks like."""

import pytest

from api_schemas import FunctionDefinition
from server.tools.typed_arguments import typed_arguments

COLOUR = {"$defs": {"colour": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}}
NULLABLE = [
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/colour"}]},
    {"enum": ["1", "true", None]},
]
STRINGS = [
    {"type": "string"},
    {"enum": ["1", "true"]},
    {"const": "1"},
    {"$ref": "#/$defs/colour"},
    {"allOf": [{"$ref": "#/$defs/colour"}]},
]
OPEN = [{}, True, {"$ref": "#/$defs/loop"}, {"$ref": "#/nowhere"}, {"description": "any"}]


def argument(schema, text: str) -> str:
    parameters = {"type": "object", "properties": {"a": schema}, **COLOUR}
    written = typed_arguments([("a", text)], FunctionDefinition(name="f", parameters=parameters))
    return written.removeprefix('{"a": ').removesuffix("}")


@pytest.mark.parametrize("schema", NULLABLE, ids=str)
def test_a_text_that_may_be_null_is_null_or_a_text(schema):
    assert argument(schema, "null") == "null"
    for text in ("1", "true", "[1]", "words"):
        assert argument(schema, text) == f'"{text}"'


@pytest.mark.parametrize("schema", STRINGS, ids=str)
def test_a_text_is_a_text_whatever_it_looks_like(schema):
    for text in ("1", "true", "null", "[1]", "words"):
        assert argument(schema, text) == f'"{text}"'


@pytest.mark.parametrize("schema", OPEN, ids=str)
def test_what_the_schema_leaves_open_is_json_if_it_can_be(schema):
    for text in ("1", "true", "null", "[1]", '"words"'):
        assert argument(schema, text) == text
    assert argument(schema, "words") == '"words"'


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "integer"]}, "12", "12"),
        ({"type": ["string", "integer"]}, "1.5", '"1.5"'),
        ({"type": ["string", "number"]}, "12", "12"),
        ({"type": ["string", "boolean"]}, "12", '"12"'),
        ({"type": "number"}, " 1.00000000000000000001 ", "1.00000000000000000001"),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "object"}, '{"b": 1}', '{"b": 1}'),
        ({"type": "string"}, 'a"b', '"a\\"b"'),
    ],
    ids=str,
)
def test_several_types_and_numbers(schema, text, value):
    assert argument(schema, text) == value
