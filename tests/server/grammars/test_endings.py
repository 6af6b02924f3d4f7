"""Whether a schema can end is found in as many looks as it has parts, whatever refers to what."""

import pytest

from server.grammars.endings import can_end

MOST_LOOKS = 12  # at one schema
NUM_SCHEMAS = 300


class Counted(dict):
    """A schema that counts how often it is looked at."""

    num_looks = 0

    def get(self, *arguments):
        Counted.num_looks += 1
        return super().get(*arguments)

    def __contains__(self, key):
        Counted.num_looks += 1
        return super().__contains__(key)


def needing(*names, **more) -> Counted:
    properties = {name: Counted({"$ref": f"#/$defs/{name}"}) for name in names}
    return Counted(type="object", properties=properties, required=list(names), **more)


def chain() -> Counted:
    """Each definition needs the next one; the last ends."""
    definitions = {f"d{number}": needing(f"d{number + 1}") for number in range(NUM_SCHEMAS)}
    definitions[f"d{NUM_SCHEMAS}"] = Counted(type="string")
    return needing("d0", **{"$defs": definitions})


def fan() -> Counted:
    """One part needs all others, and each of them needs the last."""
    names = [f"d{number}" for number in range(NUM_SCHEMAS)]
    definitions = {name: needing("end") for name in names}
    return needing(*names, **{"$defs": {**definitions, "end": Counted(type="null")}})


def cycle() -> Counted:
    """Each definition needs the next one, the last the first; a choice has them all and no end."""
    names = [f"d{number}" for number in range(NUM_SCHEMAS)]
    definitions = {
        name: needing(after) for name, after in zip(names, names[1:] + names[:1], strict=True)
    }
    options = [Counted({"$ref": f"#/$defs/{name}"}) for name in names]
    return Counted({"anyOf": options, "$defs": definitions})


@pytest.mark.parametrize(("make", "ends"), [(chain, True), (fan, True), (cycle, False)])
def test_no_schema_is_looked_at_over_and_over(make, ends):
    schema = make()
    Counted.num_looks = 0
    assert can_end(schema) is ends
    num_parts = 2 * NUM_SCHEMAS + 3
    assert 0 < Counted.num_looks < MOST_LOOKS * num_parts


@pytest.mark.parametrize("index", ["9" * 5000, "1", "-1", "\u0661"])
def test_an_index_that_no_list_has_points_nowhere(index):
    assert can_end({"$ref": f"#/list/{index}", "list": [{"type": "string"}]})
