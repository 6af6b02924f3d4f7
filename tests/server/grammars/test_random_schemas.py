"""Random schemas: whatever a grammar allows is valid, or the schema is refused by what it holds."""

import json
import logging
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest
from transformers import AutoTokenizer

from api_schemas import Constraint, ConstraintKind
from server.environment import cache_folder
from server.grammars.compiler import GrammarCompiler
from server.grammars.sources import constraint_recipe
from server.model_store import find_model
from server.request_errors import RequestError
from server.settings import ModelSettings
from server.vocabulary import Vocabulary
from tests.server.grammars.random_schemas import keywords, random_schema
from tests.server.grammars.walks import Adversary, Walker

logger = logging.getLogger(__name__)

NUM_SCHEMAS = 300
NUM_WALKS = 2
NUM_CHANGES = 6
# What is said of a schema that nothing fulfils, whichever keywords contradict each other.
CONTRADICTIONS = ("nsatisfiable", "without end", "no answer can follow it")


class Judge:
    """Says of each schema what became of it, or fails."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiler = GrammarCompiler(vocabulary)
        self._walkers = [Walker(vocabulary), Adversary(vocabulary)]
        self.seen: Counter[str] = Counter()

    def close(self) -> None:
        self._compiler.close()

    async def judge(self, number: int) -> None:
        schema = random_schema(number)
        jsonschema.Draft202012Validator.check_schema(schema)
        recipe = constraint_recipe(Constraint(ConstraintKind.JSON_SCHEMA, schema, "the.field"))
        assert recipe is not None
        try:
            grammar = await self._compiler.compile(recipe)
        except RequestError as error:
            self._check_refusal(schema, error)
            return
        self.seen["followed"] += 1
        checker = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        for seed in range(NUM_WALKS):
            for walker in self._walkers:
                text = walker.walk(grammar, seed)
                self.seen["endless" if text is None else "walks"] += 1
                if text is not None:
                    value = json.loads(text)
                    assert checker.is_valid(value), (schema, text)
                    self._change(grammar, checker, value, random.Random(seed))

    def _check_refusal(self, schema: Any, error: RequestError) -> None:
        """Fail if a client could not tell from an error what the server can't do."""
        self.seen["refused"] += 1
        assert (error.status, error.param) == (400, "the.field")
        named = [one for one in keywords(schema) if one and one in str(error)]
        assert named or any(one in str(error) for one in CONTRADICTIONS), (schema, str(error))

    def _change(self, grammar: Any, checker: Any, value: Any, chance: random.Random) -> None:
        """Look for values near a valid one that aren't, and must not be allowed."""
        for _ in range(NUM_CHANGES):
            changed = change(value, chance)
            if not checker.is_valid(changed):
                self.seen["changed"] += 1
                assert not self._allows(grammar, json.dumps(changed)), (checker.schema, changed)

    def _allows(self, grammar: Any, text: str) -> bool:
        matcher = grammar.matcher()
        try:
            for token in self._vocabulary.encode(text):
                matcher.accept(token)
        except ValueError:
            return False
        return bool(matcher.is_complete())


def change(value: Any, chance: random.Random) -> Any:
    """Return a value that differs in one place, often the place of a limit."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        rest = {key: item for key, item in value.items() if key != name}
        if chance.random() < 0.4:
            return rest
        return {**value, name: change(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        if chance.random() < 0.4:
            return value[:place] + value[place + 1 :]
        return [*value[:place], change(value[place], chance), *value[place + 1 :]]
    others: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], {}, {"zz": 1}, [value, value]]
    if isinstance(value, str):
        others += [value + "x", value[:-1], value + "\n", value.upper()]
    if isinstance(value, int | float) and abs(value) < 1e9:
        others += [value + 1, value - 1, -value, value * 10, value + 0.5]
    return chance.choice(others)


async def judge_all(vocabulary: Vocabulary) -> None:
    judge = Judge(vocabulary)
    for number in range(NUM_SCHEMAS):
        await judge.judge(number)
    judge.close()
    logger.info("%d random schemas: %s", NUM_SCHEMAS, dict(judge.seen))
    assert min(judge.seen["followed"], judge.seen["refused"]) > NUM_SCHEMAS // 5
    assert judge.seen["walks"] > 20 * judge.seen["endless"]
    assert judge.seen["changed"] > NUM_SCHEMAS


async def test_whatever_is_allowed_is_valid_and_the_rest_is_refused(vocabulary):
    await judge_all(vocabulary)


@pytest.mark.long
async def test_the_same_over_the_tokens_of_the_default_model():
    folder = find_model(ModelSettings(), cache_folder()).folder
    await judge_all(Vocabulary(AutoTokenizer.from_pretrained(folder)))
