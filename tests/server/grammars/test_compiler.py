"""Compiling: every kind of constraint, once each, within limits, off the event loop."""

import asyncio
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from api_schemas import Constraint, ConstraintKind
from server.grammars import compiler as compiler_module
from server.grammars.compiler import GrammarCompiler
from server.grammars.sources import GrammarRecipe, constraint_recipe
from server.request_errors import RequestError
from server.vocabulary import Vocabulary
from tests.server.fakes import (
    make_metaspace_tokenizer,
    make_wordpiece_tokenizer,
)
from tests.server.grammars.walks import Walker

GBNF = 'root ::= greeting " " name\ngreeting ::= "hello" | "bye"\nname ::= [a-c]+\n'
LARK = 'start: GREETING " " NAME\nGREETING: "hello" | "bye"\nNAME: /[a-c]+/\n'
CHOICES = ['quo"te', "line\nbreak", "a/b", "back\\slash", "é😀", "tab\t", "\x7f"]


@pytest.fixture
def compiler(vocabulary):
    made = GrammarCompiler(vocabulary)
    yield made
    made.close()


def of(kind: ConstraintKind, value=None) -> GrammarRecipe:
    recipe = constraint_recipe(Constraint(kind, value, "the.field"))
    assert recipe is not None
    return recipe


async def walks(compiler, vocabulary, constraint, count=10) -> list[str]:
    grammar = await compiler.compile(constraint)
    found = [Walker(vocabulary).walk(grammar, seed) for seed in range(count)]
    return [text for text in found if text is not None]


@pytest.mark.parametrize("pattern", [r"\d{3}-\d{2}", "^(yes|no)$", "[a-z/]{2,4}", "(?i)ok"])
async def test_a_regular_expression_matches_the_whole_answer(compiler, vocabulary, pattern):
    texts = await walks(compiler, vocabulary, of(ConstraintKind.REGEX, pattern))
    assert texts
    assert all(re.fullmatch(pattern, text) for text in texts)


async def test_a_choice_is_one_of_the_texts(compiler, vocabulary):
    texts = await walks(compiler, vocabulary, of(ConstraintKind.CHOICE, CHOICES), count=40)
    assert set(texts) <= set(CHOICES)
    assert len(set(texts)) > 3


@pytest.mark.parametrize("grammar", [GBNF, LARK])
async def test_both_notations_of_grammars_are_read(compiler, vocabulary, grammar):
    texts = await walks(compiler, vocabulary, of(ConstraintKind.GRAMMAR, grammar))
    assert texts
    assert all(re.fullmatch("(hello|bye) [a-c]+", text) for text in texts)


async def test_json_object_is_an_object(compiler, vocabulary):
    texts = await walks(compiler, vocabulary, of(ConstraintKind.JSON_OBJECT))
    assert texts
    assert all(isinstance(json.loads(text), dict) for text in texts)


@pytest.mark.parametrize("byte_fallback", [False, True])
async def test_vocabularies_of_other_families_work(byte_fallback):
    vocabulary = Vocabulary(make_metaspace_tokenizer(byte_fallback=byte_fallback))
    compiler = GrammarCompiler(vocabulary)
    texts = await walks(compiler, vocabulary, of(ConstraintKind.REGEX, "h(e|el)lo( world)?"))
    compiler.close()
    assert texts
    assert all(re.fullmatch("h(e|el)lo( world)?", text) for text in texts)


async def test_a_vocabulary_that_moves_blanks_is_refused():
    compiler = GrammarCompiler(Vocabulary(make_wordpiece_tokenizer()))
    with pytest.raises(RequestError, match="tokenizer"):
        await compiler.compile(of(ConstraintKind.JSON_OBJECT))
    compiler.close()


@pytest.mark.parametrize(
    ("constraint", "code", "text"),
    [
        (of(ConstraintKind.REGEX, "("), "invalid_regex", "unclosed group"),
        (of(ConstraintKind.REGEX, "a(?=b)"), "invalid_regex", "look-around"),
        (of(ConstraintKind.GRAMMAR, "start: undefined_rule"), "invalid_grammar", "undefined_rule"),
        (of(ConstraintKind.GRAMMAR, "root ::= (("), "invalid_grammar", "The grammar"),
        (of(ConstraintKind.GRAMMAR, "\x00"), "invalid_grammar", "The grammar"),
    ],
)
async def test_what_does_not_compile_is_a_400_that_names_the_field(
    compiler, constraint, code, text
):
    with pytest.raises(RequestError, match=re.escape(text)) as caught:
        await compiler.compile(constraint)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "the.field", code)
    assert len(str(error)) < 400


def deep(levels: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (deep(100), "nested deeper than 64"),
        (json.dumps(deep(100)), "nested deeper than 64"),
        ("[" * 100_000, "not valid JSON"),
        ({"enum": ["x" * 1_000_000]}, "longer than"),
        ({"enum": list(range(60_000))}, "more than 50000 values"),
        ('{"const": "\\ud800"}', "no Unicode text"),
        ({"const": int("9" * 4000)}, "number that is too long"),
    ],
    ids=["deep", "deep text", "very deep text", "long", "wide", "surrogate", "long number"],
)
async def test_schemas_are_bounded(compiler, value, text):
    with pytest.raises(RequestError, match=text):
        await compiler.compile(of(ConstraintKind.JSON_SCHEMA, value))


async def test_a_source_that_is_too_long_is_not_walked_over(compiler):
    def never() -> str:
        raise AssertionError

    recipe = GrammarRecipe("It", "a", "b", ("x" * 1_000_000,), never)
    with pytest.raises(RequestError, match="longer than"):
        await compiler.compile(recipe)


async def test_grammars_that_take_too_long_leave_the_threads_to_others(compiler, monkeypatch):
    def endless() -> str:
        while True:
            pass

    await compiler.compile(of(ConstraintKind.JSON_OBJECT))
    monkeypatch.setattr(compiler_module, "TIMEOUT_SECONDS", 0.05)
    for number in range(compiler_module.NUM_THREADS):
        with pytest.raises(RequestError, match="to compile"):
            await compiler.compile(GrammarRecipe("It", "a", "b", (number,), endless))
    monkeypatch.undo()
    await compiler.compile(of(ConstraintKind.REGEX, "a"))


async def test_a_schema_that_takes_too_long_is_a_400(compiler, monkeypatch):
    monkeypatch.setattr(compiler_module, "TIMEOUT_SECONDS", 0.0)
    with pytest.raises(RequestError, match="to compile"):
        await compiler.compile(of(ConstraintKind.JSON_OBJECT))


async def test_equal_grammars_are_made_and_compiled_once(compiler):
    made = []
    real = of(ConstraintKind.REGEX, "a+")

    def make() -> str:
        made.append(1)
        return real.make()

    def same() -> GrammarRecipe:
        return replace(real, make=make)

    found = await asyncio.gather(*(compiler.compile(same()) for _ in range(5)))
    assert len(made) == 1
    assert all(one is found[0] for one in found)


async def test_the_least_recently_used_grammars_go(compiler, monkeypatch):
    monkeypatch.setattr(compiler_module, "MAX_KEPT", 2)
    first, second, third = (of(ConstraintKind.REGEX, letter) for letter in "abc")
    kept = await compiler.compile(first)
    await compiler.compile(second)
    assert await compiler.compile(first) is kept
    await compiler.compile(third)
    assert await compiler.compile(first) is kept
    assert len(compiler._kept) == 2


async def test_a_client_that_leaves_does_not_end_the_wait_of_others(compiler):
    same = of(ConstraintKind.REGEX, "a+")
    leaving = asyncio.create_task(compiler.compile(same))
    staying = asyncio.create_task(compiler.compile(same))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying is await compiler.compile(same)


async def test_a_failure_is_not_kept(compiler):
    patches = pytest.MonkeyPatch()
    patches.setattr(compiler_module, "make_tokenizer", lambda _vocabulary: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await compiler.compile(of(ConstraintKind.JSON_OBJECT))
    patches.undo()
    await compiler.compile(of(ConstraintKind.JSON_OBJECT))


async def test_blanks_are_bounded(compiler, vocabulary):
    grammar = await compiler.compile(of(ConstraintKind.JSON_OBJECT))
    matcher = grammar.matcher()
    (brace,) = vocabulary.encode("{")
    (blank,) = vocabulary.encode(" ")
    matcher.accept(brace)
    num_blanks = 0
    allowed = np.zeros(len(vocabulary.all_bytes()), dtype=np.bool_)
    matcher.allow(allowed)
    while allowed[blank]:
        matcher.accept(blank)
        num_blanks += 1
        allowed[:] = False
        matcher.allow(allowed)
    assert num_blanks == 2
