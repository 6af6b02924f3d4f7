"""What follows a schema is judged by another library, for every keyword that is followed."""

import json

import jsonschema
import pytest

from api_schemas import Constraint, ConstraintKind
from server.grammars.compiler import GrammarCompiler
from server.grammars.sources import GrammarRecipe, constraint_recipe
from server.request_errors import RequestError
from tests.server.grammars.schema_cases import FOLLOWED, REFUSED
from tests.server.grammars.walks import Walker

NUM_WALKS = 6


@pytest.fixture(scope="module")
def walker(vocabulary) -> Walker:
    return Walker(vocabulary)


@pytest.fixture
def compiler(vocabulary):
    made = GrammarCompiler(vocabulary)
    yield made
    made.close()


def recipe(value) -> GrammarRecipe:
    param = "response_format.json_schema.schema"
    made = constraint_recipe(Constraint(ConstraintKind.JSON_SCHEMA, value, param))
    assert made is not None
    return made


def shown(schema) -> str:
    return json.dumps(schema)[:60]


@pytest.mark.parametrize("schema", FOLLOWED, ids=shown)
async def test_whatever_is_allowed_is_valid(compiler, walker, schema):
    grammar = await compiler.compile(recipe(schema))
    checker = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    texts = [walker.walk(grammar, seed) for seed in range(NUM_WALKS)]
    ended = [text for text in texts if text is not None]
    assert ended, "no walk came to its end"
    for text in ended:
        checker.validate(json.loads(text))


@pytest.mark.parametrize(("schema", "name"), REFUSED, ids=lambda value: shown(value))
async def test_what_cannot_be_followed_is_refused_by_name(compiler, schema, name):
    with pytest.raises(RequestError) as caught:
        await compiler.compile(recipe(schema))
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400
    assert (caught.value.status, caught.value.code) == (400, "invalid_json_schema")
    assert caught.value.param == "response_format.json_schema.schema"
