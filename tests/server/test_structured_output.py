"""What a request asks of its answer's form reaches the engine as a grammar, or is a 400."""

import pytest

from engine import Grammar, GrammarFailedError
from tests.server.live import LiveServer

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def json_schema(schema: object, **fields: object) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}


ASKING = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"response_format": json_schema(SCHEMA)},
    {"response_format": json_schema(SCHEMA, strict=True)},
    {"response_format": json_schema({"type": "string", "minLength": 2.0, "maxLength": 4e0})},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"structured_outputs": {"grammar": "root ::= [a-z]+"}},
    {"guided_json": SCHEMA},
    {"guided_json": '{"type": "integer"}'},
    {"guided_regex": "a+"},
    {"guided_choice": ["a"]},
    {"guided_grammar": "start: /a+/"},
    {"json_schema": SCHEMA},
    {"regex": "a+"},
    {"grammar": "root ::= [a-z]+"},
    {"ebnf": "root ::= [a-z]+"},
]
FREE = [
    {},
    {"response_format": {"type": "text"}},
    {"response_format": None},
    {"guided_choice": [], "guided_json": None, "regex": "", "json_schema": {}},
    {"structured_outputs": {}},
]
REFUSED = [
    ({"response_format": {"type": "banana"}}, "response_format.type"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": json_schema([1])}, "response_format.json_schema.schema"),
    ({"response_format": json_schema("{")}, "response_format.json_schema.schema"),
    ({"response_format": json_schema({"type": "x"})}, "response_format.json_schema.schema"),
    ({"response_format": json_schema({"minLength": 2.5})}, "response_format.json_schema.schema"),
    ({"response_format": json_schema({"not": {}})}, "response_format.json_schema.schema"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice.0"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"guided_grammar": "start: missing"}, "guided_grammar"),
    ({"guided_choice": [1]}, "guided_choice.0"),
]


@pytest.mark.parametrize("fields", ASKING, ids=str)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_every_spelling_reaches_the_engine(live: LiveServer, fields, endpoint):
    response = getattr(live, endpoint)(**fields)
    assert response.status_code == 200, response.text
    assert isinstance(live.manager.added[-1].arguments["grammar"], Grammar)
    assert "X-Ignored-Params" not in response.headers


@pytest.mark.parametrize("fields", FREE, ids=str)
def test_what_asks_for_nothing_is_free(live: LiveServer, fields):
    assert live.chat(**fields).status_code == 200
    assert "grammar" not in live.manager.added[-1].arguments


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_what_cannot_be_followed_is_a_400_before_any_token(
    live: LiveServer, fields, param, endpoint
):
    for stream in (False, True):
        response = getattr(live, endpoint)(stream=stream, **fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
    assert not live.manager.added


def test_all_choices_of_all_prompts_share_the_grammar(live: LiveServer):
    assert live.complete(prompt=["a", "b"], n=2, guided_regex="a+").status_code == 200
    grammars = [request.arguments["grammar"] for request in live.manager.added]
    assert len(grammars) == 4
    assert all(grammar is grammars[0] for grammar in grammars)


def test_a_grammar_that_gives_up_on_the_way_is_the_clients_error(live: LiveServer):
    live.manager.script = lambda _ids, _arguments: [300, GrammarFailedError("too complex")]
    response = live.chat(response_format={"type": "json_object"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "grammar_failed"
    text = live.chat(response_format={"type": "json_object"}, stream=True).text
    assert '"code":"grammar_failed"' in text
    assert text.endswith("data: [DONE]\n\n")
