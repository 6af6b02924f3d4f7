"""What the grammar of a forced call allows, the parser reads as calls."""

import json
from functools import partial

import jsonschema
import pytest

from api_schemas import FunctionDefinition, ToolMode, ToolUse
from server.grammars.compiler import GrammarCompiler
from server.grammars.composition import after_reasoning, either
from server.grammars.sources import GrammarRecipe
from server.reasoning.markers import MARKERS, Opening
from server.tools.call_format import Layout
from server.tools.call_parser import CallParser, CallRules
from server.tools.forcing import MAX_FORCED_CALLS, forced_calls
from server.tools.registry import FORMATS, forced_format
from tests.server.grammars.walks import Walker
from tests.server.tools.readings import calls_of, every_reading, text_of

SCHEMA = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/x"}, "s": {"type": "string", "maxLength": 4}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"x": {"enum": [1, 2]}},
}
FUNCTIONS = (
    FunctionDefinition(name="first", parameters=SCHEMA, strict=True),
    FunctionDefinition(name="second.part-2"),
)
ANSWER = '{"grammars": [{"lark_grammar": "start: \\"yes\\" | \\"no\\""}]}'


@pytest.fixture
def compiler(vocabulary):
    made = GrammarCompiler(vocabulary)
    yield made
    made.close()


def recipe(make) -> GrammarRecipe:
    return GrammarRecipe("The grammar", "tools", "invalid", (str(make),), make)


async def walks(compiler, vocabulary, make, count=12) -> list[str]:
    grammar = await compiler.compile(recipe(make))
    found = [Walker(vocabulary).walk(grammar, seed) for seed in range(count)]
    return [text for text in found if text is not None]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_single", [False, True])
async def test_whatever_is_allowed_is_read_as_calls(compiler, vocabulary, name, is_single):
    use = ToolUse(FUNCTIONS, ToolMode.REQUIRED, is_single)
    call_format = forced_format(FORMATS[name])
    texts = await walks(compiler, vocabulary, partial(forced_calls, use, call_format.layout, {}))
    assert texts
    rules = CallRules({one.name: one for one in FUNCTIONS}, is_single)
    for text in texts:
        parts = every_reading(lambda: CallParser(call_format, rules), text)
        calls = calls_of(parts)
        assert text_of(parts) == ""
        assert 1 <= len(calls) <= (1 if is_single else MAX_FORCED_CALLS)
        for function, arguments in calls:
            if function == "first":
                jsonschema.validate(json.loads(arguments), SCHEMA)
            else:
                assert json.loads(arguments) == {}


@pytest.mark.parametrize("name", FORMATS)
async def test_a_forced_answer_that_is_cut_anywhere_leaves_no_text(compiler, vocabulary, name):
    use = ToolUse(FUNCTIONS, ToolMode.REQUIRED, is_single=False)
    call_format = forced_format(FORMATS[name])
    make = partial(forced_calls, use, call_format.layout, {})
    [text, *_] = await walks(compiler, vocabulary, make, count=4)
    rules = CallRules({one.name: one for one in FUNCTIONS}, is_forced=True)
    for length in range(len(text) + 1):
        parser = CallParser(call_format, rules)
        parts = [*parser.text(text[:length]), *parser.finish()]
        assert text_of(parts) == "", text[:length]


async def test_markers_that_are_special_tokens_are_drawn_as_such(compiler, vocabulary):
    special = {vocabulary.token_text(one): one for one in vocabulary.special_ids}
    name, token = next(iter(special.items()))
    layout = Layout(before=f"a{name}", after=name)
    use = ToolUse(FUNCTIONS[1:], ToolMode.REQUIRED, is_single=True)
    make = partial(forced_calls, use, layout, special)
    grammar = await compiler.compile(recipe(make))
    matcher = grammar.matcher()
    call = '{"name": "second.part-2", "arguments": {}}'
    for one in (*vocabulary.encode("a"), token, *vocabulary.encode(call), token):
        matcher.accept(one)
    assert matcher.is_complete()


@pytest.mark.parametrize(
    ("opening", "text", "allowed"),
    [
        (Opening.INSIDE, "a < b</think>\n\nyes", True),
        (Opening.INSIDE, "yes", False),
        (Opening.POSSIBLE, "<think>a</think>no", True),
        (Opening.POSSIBLE, "no", True),
        (Opening.POSSIBLE, "a</think>no", False),
        (Opening.CLOSED, "yes", True),
        (Opening.CLOSED, "<think>a</think>no", False),
    ],
)
async def test_reasoning_may_come_before_what_is_held(compiler, vocabulary, opening, text, allowed):
    make = partial(after_reasoning, ANSWER, MARKERS["think"], opening, {})
    grammar = await compiler.compile(recipe(make))
    matcher = grammar.matcher()
    try:
        for token in vocabulary.encode(text):
            matcher.accept(token)
    except ValueError:
        assert not allowed
    else:
        assert matcher.is_complete() is allowed


async def test_an_answer_or_a_call(compiler, vocabulary):
    use = ToolUse(FUNCTIONS, ToolMode.AUTO, is_single=True)
    calls = forced_calls(use, forced_format(FORMATS["hermes"]).layout, {})
    texts = await walks(compiler, vocabulary, partial(either, ANSWER, calls), count=30)
    assert {text.startswith("<tool_call>") for text in texts} == {False, True}
    assert {text for text in texts if not text.startswith("<")} <= {"yes", "no"}
