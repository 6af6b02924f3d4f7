"""Whether some finite JSON may fulfil a schema, as far as its references go.

Each part of a schema claims that it ends, and rests this on claims of others: all of those that it
needs, or one of several. What holds spreads from the claims that need nothing; a schema that only
requires itself is never reached. Takes time linear in the size of the schema, whatever its
references. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

_CONTAINERS = frozenset({"array", "object"})
_MAX_INDEX_DIGITS = 6


def can_end(root: Schema) -> bool:
    """Return whether finite JSON may fulfil a schema; in doubt it may."""
    return _Endings(root).can_end()


@dataclass(slots=True)
class _Claim:
    """Holds once as many of the claims that it rests on do.

    Attributes:
        num_missing: How many are still missing.
        supports: The claims that rest on this one.
    """

    num_missing: int = 0
    supports: list["_Claim"] = field(default_factory=list)


class _Endings:
    """The claims of one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._claims: list[_Claim] = []
        self._by_schema: dict[int, _Claim] = {}
        self._by_reference: dict[str, _Claim] = {}
        self._pending: list[Schema] = []

    def can_end(self) -> bool:
        """Return whether the root may be fulfilled."""
        root = self._ends(self._root)
        while self._pending:
            schema = self._pending.pop()
            self._rest(self._by_schema[id(schema)], self._needs(schema))
        self._spread()
        return root.num_missing <= 0

    def _spread(self) -> None:
        """Tell every claim of those that hold."""
        holding = [claim for claim in self._claims if claim.num_missing == 0]
        while holding:
            for claim in holding.pop().supports:
                claim.num_missing -= 1
                if claim.num_missing == 0:
                    holding.append(claim)

    def _rest(self, claim: _Claim, needs: Sequence[_Claim], least: int | None = None) -> None:
        """Rest a claim on others: on all of them, or on some."""
        claim.num_missing = len(needs) if least is None else least
        for need in needs:
            need.supports.append(claim)

    def _claim(self, needs: Sequence[_Claim] = (), least: int | None = None) -> _Claim:
        claim = _Claim()
        self._claims.append(claim)
        self._rest(claim, needs, least)
        return claim

    def _ends(self, schema: Any) -> _Claim:
        """Return the claim that a schema ends; what it rests on may be found out later."""
        if not isinstance(schema, dict):
            return self._claim()
        known = self._by_schema.get(id(schema))
        if known is None:
            known = self._by_schema[id(schema)] = self._claim()
            self._pending.append(schema)
        return known

    def _needs(self, schema: Schema) -> list[_Claim]:
        """Return what must hold for a schema to end."""
        if "const" in schema or "enum" in schema:
            return []
        needs = [self._ends(part) for part in _listed(schema, "allOf")]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            needs.append(self._target_ends(reference))
        for key in ("anyOf", "oneOf"):
            if options := _listed(schema, key):
                needs.append(self._claim([self._ends(option) for option in options], 1))
        kinds = _kinds(schema)
        if kinds <= _CONTAINERS:
            needs.append(self._claim(self._containers(schema, kinds), 1))
        return needs

    def _containers(self, schema: Schema, kinds: set[str]) -> list[_Claim]:
        """Return the claims that the object, and the array, that a schema asks for may end."""
        claims = []
        if "object" in kinds:
            properties = schema.get("properties")
            parts = properties if isinstance(properties, dict) else {}
            names = [name for name in _listed(schema, "required") if isinstance(name, str)]
            claims.append(self._claim([self._ends(parts.get(name)) for name in names]))
        if "array" in kinds:
            least = schema.get("minItems", 0)
            items: list[Any] = []
            if isinstance(least, int) and least > 0:
                items = [schema.get("items"), *_listed(schema, "prefixItems")[:least]]
            claims.append(self._claim([self._ends(item) for item in items]))
        return claims

    def _target_ends(self, reference: str) -> _Claim:
        known = self._by_reference.get(reference)
        if known is None:
            known = self._by_reference[reference] = self._ends(resolve(self._root, reference))
        return known


def resolve(root: Schema, reference: str) -> Any:
    """Return what a path into a schema itself points at; None if it is another reference."""
    if reference[:2] not in ("#", "#/"):
        return None
    target: Any = root
    for part in unquote(reference[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(part)
        elif isinstance(target, list) and _is_index(part) and int(part) < len(target):
            target = target[int(part)]
        else:
            return None
    return target


def _is_index(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_INDEX_DIGITS


def _kinds(schema: Schema) -> set[str]:
    """Return the types a schema names; none at all stand for any."""
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return {str(kind) for kind in listed}


def _listed(schema: Schema, key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
