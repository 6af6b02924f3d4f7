"""Random schemas out of every keyword: those that are followed, and those that are refused."""

import random
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]

NAMES = ["a", "name", "ünï", 'odd "one"', "n_x", ""]
TEXTS = ["red", "é", "日本", "😀", 'quo"te', "line\nbreak", ""]
VALUES: list[Any] = [*TEXTS, 0, -7, 2.5, True, None, [], [1, "x"], {"a": 1}]
PATTERNS = ["^[a-f]{2,4}$", "b+", r"^\d{1,3}-\d$", "^[^x]*x$", "^a|b$", r"^\w+ ?\w*$", "é|日本"]
FORMATS = ["date", "time", "date-time", "duration", "email", "ipv4", "ipv6", "uuid", "hostname"]
FORMATS += ["idn-email", "iri", "json-pointer", "regex", "no-such-format"]
ANNOTATIONS: Schema = {
    "title": "t", "description": "d", "default": 1, "examples": [1], "deprecated": True,
    "$comment": "c", "readOnly": True, "x-own": {"type": "nothing"},
}  # fmt: skip
# What a schema of any type may hold that the library doesn't enforce.
REFUSED: list[Schema] = [
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"else": {"minLength": 2}},
    {"uniqueItems": True},
    {"contains": {"type": "integer"}},
    {"contains": {}, "minContains": 2},
    {"contains": {}, "maxContains": 2},
    {"unevaluatedItems": False},
    {"unevaluatedProperties": False},
    {"propertyNames": {"maxLength": 3}},
    {"dependentRequired": {"a": ["name"]}},
    {"dependentSchemas": {"a": {"required": ["name"]}}},
    {"$dynamicRef": "#node"},
]


def random_schema(number: int) -> Schema:
    """Return the schema of this number."""
    chance = random.Random(number)
    schema = _Maker(chance).schema(depth=chance.choice([0, 1, 1, 2, 3]))
    if chance.random() < 0.2:
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return schema


def keywords(schema: Any) -> Iterator[str]:
    """Yield every key, and every type and format that is named, at any depth."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            if key in ("type", "format", "$ref", "pattern"):
                yield str(value).removeprefix("#")
            yield from keywords(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keywords(value)


class _Maker:
    """Makes one schema."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._defs: Schema = {}

    def schema(self, depth: int) -> Schema:
        """Return a whole schema with the definitions that it refers to."""
        schema = self._sub(depth)
        if self._defs:
            schema["$defs"] = self._defs
        return schema

    def _sub(self, depth: int) -> Schema:
        flat: list[Callable[[], Schema]] = [self._text, self._number, self._value, self._any_type]
        deep = [self._array, self._object, self._object, self._combined, self._reference]
        chosen = self._chance.choice(flat) if depth <= 0 else None
        schema = chosen() if chosen else self._chance.choice(deep)(depth - 1)
        if self._chance.random() < 0.1:
            key = self._chance.choice(list(ANNOTATIONS))
            schema = {key: ANNOTATIONS[key], **schema}
        if self._chance.random() < 0.05:
            schema = {**schema, **self._chance.choice(REFUSED)}
        return schema

    def _few(self, **fields: Any) -> Schema:
        return {key: value for key, value in fields.items() if self._chance.random() < 0.4}

    def _least(self, most: int) -> float:
        count = self._chance.randrange(most + 1)
        return float(count) if self._chance.random() < 0.2 else count

    def _any_type(self) -> Schema:
        kinds = ["string", "integer", "number", "boolean", "null", "array", "object"]
        if self._chance.random() < 0.5:
            return {"type": self._chance.sample(kinds, 2)}
        return {"type": self._chance.choice(kinds)}

    def _text(self) -> Schema:
        limits = self._few(minLength=self._least(4), maxLength=self._least(8))
        kind = self._chance.choice(["limits", "pattern", "format", "both"])
        if kind in ("pattern", "both"):
            limits = {"pattern": self._chance.choice(PATTERNS)} | (limits if kind == "both" else {})
        elif kind == "format":
            limits = {"format": self._chance.choice(FORMATS)}
        return {"type": "string", **limits}

    def _number(self) -> Schema:
        kind = self._chance.choice(["integer", "number"])
        low = self._chance.choice([-1000, -12, -1, 0, 1, 7, 99, 0.5])
        size = self._chance.choice([0, 1, 5, 90, 10_000, 0.25])
        limits = self._few(
            minimum=low,
            maximum=low + size,
            exclusiveMinimum=low - 1,
            exclusiveMaximum=low + size + 1,
            multipleOf=self._chance.choice([1, 3, 10]),
        )
        return {"type": kind, **limits}

    def _value(self) -> Schema:
        values = self._chance.sample(VALUES, self._chance.choice([1, 2, 5]))
        return {"const": values[0]} if self._chance.random() < 0.4 else {"enum": values}

    def _array(self, depth: int) -> Schema:
        limits = self._few(minItems=self._least(3), maxItems=self._least(4))
        parts: Schema = {}
        if self._chance.random() < 0.7:
            parts["items"] = self._chance.choice([self._sub(depth), self._sub(depth), False, True])
        if self._chance.random() < 0.3:
            parts["prefixItems"] = [self._sub(depth) for _ in range(self._chance.choice([1, 2]))]
        return {"type": "array", **parts, **limits}

    def _object(self, depth: int) -> Schema:
        names = self._chance.sample(NAMES, self._chance.choice([0, 1, 2, 3]))
        schema: Schema = {"type": "object", "properties": {one: self._sub(depth) for one in names}}
        schema["required"] = [name for name in names if self._chance.random() < 0.6]
        if self._chance.random() < 0.1:
            schema["required"].append("another")
        schema |= self._few(
            additionalProperties=self._chance.choice([False, True, self._sub(0)]),
        )
        if self._chance.random() < 0.15:
            schema["patternProperties"] = {"^n_[a-z]+$": self._sub(0)}
        if self._chance.random() < 0.2:
            schema |= self._few(minProperties=self._least(3), maxProperties=self._least(4))
        keys = list(schema)
        self._chance.shuffle(keys)  # the order of keywords means nothing
        return {key: schema[key] for key in keys}

    def _combined(self, depth: int) -> Schema:
        key = self._chance.choice(["anyOf", "anyOf", "oneOf", "allOf"])
        schema: Schema = {key: [self._sub(depth) for _ in range(self._chance.choice([1, 2, 3]))]}
        if self._chance.random() < 0.3:
            schema |= self._sub(depth)
        return schema

    def _reference(self, depth: int) -> Schema:
        """Refer to another schema, to what holds this one, or to nothing that is there."""
        name = f"d{len(self._defs)}/~%"
        self._defs[name] = {}
        self._defs[name] = self._sub(depth)
        path = "#/$defs/" + name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
        schema: Schema = {"$ref": self._chance.choice([path] * 6 + ["#/$defs/gone", "#anchor"])}
        if self._chance.random() < 0.1:
            schema = {"type": "array", "items": {"$ref": "#"}}
        elif self._chance.random() < 0.3:
            schema = {"anyOf": [schema, {"type": "null"}]}
        return schema
