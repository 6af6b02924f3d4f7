"""Nothing that a request may say is accepted and then read by nobody."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import api_schemas.endpoints
from api_schemas.base import RequestModel

ROOT = Path(__file__).parents[2]
# Fields with nothing to be done about them.
NEEDS_NO_READER = {
    "completion_window": "has one value only",
    "include_obfuscation": "pads events; there is no padding here, which false asks for",
}


def words_read() -> set[str]:
    """Names of attributes, and words that attributes are looked up by, in the code that serves."""
    found: set[str] = set()
    for folder in ("api_schemas", "server"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


def request_models(kind: type[RequestModel] = RequestModel) -> Iterator[type[RequestModel]]:
    assert api_schemas.endpoints.REQUEST_BODIES, "what imports all models"
    for model in kind.__subclasses__():
        yield model
        yield from request_models(model)


FIELDS = sorted(
    {
        (name, model.__name__)
        for model in request_models()
        if model.__module__.startswith("api_schemas.")
        for name in model.__annotations__
        if name in model.model_fields
    }
)


@pytest.fixture(scope="module")
def read() -> set[str]:
    return words_read()


@pytest.mark.parametrize(("name", "model"), FIELDS)
def test_every_field_of_a_request_is_read(read, name, model):
    assert (name in read) is (name not in NEEDS_NO_READER)
