"""Small schemas, one or more for every keyword that is followed, and what is refused by name."""

from typing import Any

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}


def thing(required=(), **properties):
    """An object that holds these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required) or list(properties),
        "additionalProperties": False,
    }


TYPES: list[dict[str, Any]] = [
    {"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "object", "array")
] + [
    {"type": ["string", "null"]},
    {"type": ["integer", "boolean", "array"]},
    {"type": ["object", "null"], "properties": {"a": INTEGER}, "required": ["a"]},
    {},
    {"title": "t", "description": "d", "default": 1, "examples": [1], "deprecated": True} | INTEGER,
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": "c"} | STRING,
    {"$schema": "http://json-schema.org/draft-07/schema#"} | INTEGER,
    {"$id": "https://example.com/s.json"} | INTEGER,
    {"x-anything": {"y": 1}} | INTEGER,
]
CONSTANTS: list[Any] = ["a", 'quo"te', "line\nbreak", 1, -2.5, True, None, [], {"a": [1]}]
VALUES: list[dict[str, Any]] = [{"const": value} for value in CONSTANTS] + [
    {"enum": ["red", "green"]},
    {"enum": [1, 2, 3]},
    {"enum": [None, False, 0, "0", [0], {"a": 0}]},
    {"type": "string", "enum": ["é", "日本", "😀"]},
    {"type": "integer", "enum": [1, 20]},
    {"enum": ["only"]},
]
STRINGS: list[dict[str, Any]] = [
    STRING | limits
    for limits in (
        {"minLength": 3},
        {"maxLength": 2},
        {"minLength": 2, "maxLength": 4},
        {"maxLength": 0},
        {"pattern": "^[a-f]{2,4}$"},
        {"pattern": "b+"},
        {"pattern": "^(\\d{3})-(\\d{4})$"},
        {"pattern": "^[^x]*x$"},
        {"pattern": "^a|b$"},
        {"pattern": "^[\\w.]+@\\w+$", "maxLength": 20},
        {"format": "date"},
        {"format": "time"},
        {"format": "date-time"},
        {"format": "duration"},
        {"format": "email"},
        {"format": "ipv4"},
        {"format": "ipv6"},
        {"format": "uuid"},
        {"format": "hostname"},
    )
]
NUMBERS: list[dict[str, Any]] = [
    {"type": kind} | limits
    for kind in ("integer", "number")
    for limits in (
        {"minimum": 3},
        {"maximum": -2},
        {"minimum": 1, "maximum": 9},
        {"exclusiveMinimum": 0},
        {"exclusiveMaximum": 10, "minimum": 8},
        {"minimum": -5, "maximum": 5},
        {"minimum": 98, "maximum": 1003},
    )
] + [
    {"type": "integer", "multipleOf": 3},
    {"type": "integer", "multipleOf": 10, "minimum": 15, "maximum": 45},
    {"type": "number", "minimum": 0.5, "maximum": 0.75},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 2},
]
ARRAYS: list[dict[str, Any]] = [
    {"type": "array", "items": INTEGER},
    {"type": "array", "items": INTEGER, "minItems": 2},
    {"type": "array", "items": STRING, "maxItems": 2},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [INTEGER, {"const": "x"}], "items": {"type": "boolean"}},
    {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}, "minItems": 1},
    {"type": "array", "items": thing(a=INTEGER), "minItems": 1, "maxItems": 2},
]
OBJECTS: list[dict[str, Any]] = [
    thing(a=INTEGER),
    thing(a=INTEGER, b=STRING, c={"type": "boolean"}),
    thing(("b",), a=INTEGER, b=STRING),
    {"type": "object", "properties": {"a": INTEGER, "b": STRING}},
    {"type": "object", "properties": {"a": INTEGER}, "required": ["a", "z"]},
    {"type": "object", "additionalProperties": INTEGER},
    {"type": "object", "additionalProperties": {"type": "integer"}, "properties": {"s": STRING}},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "patternProperties": {"^n_[a-z]+$": INTEGER}, "additionalProperties": False},
    {"type": "object", "additionalProperties": INTEGER, "minProperties": 2, "maxProperties": 3},
    {"type": "object", "additionalProperties": INTEGER, "maxProperties": 1},
    thing(outer=thing(inner=thing(leaf={"const": 7}))),
    thing(**{'odd "name"': INTEGER, "ünï": INTEGER, "": INTEGER}),
    {"properties": {"a": INTEGER}, "required": ["a"], "type": "object"},
]
# In JSON 2.0 is an integer, and so is a number that no answer will ever come near.
COUNTS: list[dict[str, Any]] = [
    STRING | {"minLength": 3.0},
    STRING | {"maxLength": 2.0},
    STRING | {"minLength": 1.0, "maxLength": 1e300},
    STRING | {"pattern": "b+", "maxLength": 4.0},
    {"type": "array", "items": INTEGER, "minItems": 2.0},
    {"type": "array", "items": INTEGER, "maxItems": 1.0},
    {"type": "array", "items": INTEGER, "maxItems": 2**70},
    {"type": "object", "additionalProperties": INTEGER, "minProperties": 2.0},
    {"type": "object", "additionalProperties": INTEGER, "maxProperties": 1.0},
    {"type": "object", "additionalProperties": INTEGER, "maxProperties": 1e20},
    {"type": "integer", "minimum": 2.0, "maximum": 4e0},
    {"type": "integer", "multipleOf": 3.0},
    {"anyOf": [{"type": "array", "items": STRING | {"minLength": 2.0}, "minItems": 1.0}]},
    thing(minLength=STRING | {"maxLength": 3.0}, const={"$ref": "#/$defs/maxItems"})
    | {"$defs": {"maxItems": {"type": "array", "items": INTEGER, "maxItems": 2.0}}},
    {"const": {"minLength": 2.5, "maxItems": 1e20}},
    {"enum": [{"properties": {"maxLength": 2**40}}]},
]
COMBINED: list[dict[str, Any]] = [
    {"anyOf": [STRING, INTEGER]},
    {"anyOf": [thing(a=INTEGER), thing(b=STRING), {"type": "null"}]},
    thing(value={"anyOf": [INTEGER, {"type": "null"}]}),
    {"oneOf": [STRING, INTEGER]},
    {"oneOf": [thing(kind={"const": "a"}, x=INTEGER), thing(kind={"const": "b"}, y=STRING)]},
    {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}]},
    {"allOf": [{"$ref": "#/$defs/p"}], "$defs": {"p": thing(a=INTEGER)}},
    {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 10}]},
    {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "anyOf": [{}]},
]
REFERENCES: list[dict[str, Any]] = [
    {"$ref": "#/$defs/n", "$defs": {"n": INTEGER}},
    {"$ref": "#/definitions/n", "definitions": {"n": INTEGER}},
    thing(a={"$ref": "#/$defs/e"}, b={"$ref": "#/$defs/e"}) | {"$defs": {"e": {"enum": ["x"]}}},
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": thing(
                ("value",), value=INTEGER, left={"$ref": "#/$defs/tree"}, right={"type": "null"}
            )
        },
    },
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "boolean"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": INTEGER}},
    {"$ref": "#there", "$defs": {"a": {"$anchor": "there", "type": "integer"}}},
]
FOLLOWED = TYPES + VALUES + STRINGS + NUMBERS + ARRAYS + OBJECTS + COUNTS + COMBINED + REFERENCES

# A schema, and what the refusal must name.
REFUSED = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": INTEGER}, "contains"),
    ({"not": STRING}, "not"),
    ({"if": STRING, "then": {"minLength": 3}}, "if"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"oneOf": [STRING, {"type": "string", "minLength": 3}]}, "oneOf"),
    ({"type": "string", "format": "no-such-format"}, "no-such-format"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "string", "pattern": "("}, "regex"),
    ({"type": "banana"}, "banana"),
    ({"type": 5}, "type"),
    ({"type": "string", "minLength": "3"}, "minLength"),
    *[
        (schema | {keyword: value}, keyword)
        for schema, keywords in (
            (STRING, ("minLength", "maxLength")),
            ({"type": "array"}, ("minItems", "maxItems")),
            ({"type": "object"}, ("minProperties", "maxProperties")),
            ({"type": "array", "contains": INTEGER}, ("minContains", "maxContains")),
        )
        for keyword in keywords
        for value in (2.5, -1, -1.0, True, None, float("inf"))
    ],
    ({"properties": []}, "properties"),
    ({"enum": "a"}, "enum"),
    ({"enum": []}, "empty"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
    ({"$ref": "https://example.com/other.json"}, "example.com"),
    ({"$ref": "#/$defs/missing"}, "missing"),
    ({"$ref": "#missing"}, "Anchor 'missing'"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "without end"),
    (thing(again={"$ref": "#"}), "without end"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "without end"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1.0}, "without end"),
    ({"allOf": [{"$ref": "#"}]}, "without end"),
    ({"anyOf": [{"$ref": "#"}, thing(a={"$ref": "#"})]}, "without end"),
    (thing(a=False), "unsatisfiable"),
    (False, "false"),
    ("{nonsense", "valid JSON"),
    ("[1]", "object"),
]
