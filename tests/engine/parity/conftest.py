"""What the parity tests share: models with the oracle's answers, and a count of near ties."""

from collections.abc import Callable, Generator
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import engine
from server.environment import cache_folder
from server.model_store import find_model
from server.settings import ModelSettings
from tests.engine.parity.comparison import Parity
from tests.engine.parity.default_model import DefaultModel
from tests.engine.parity.families import make_family
from tests.engine.parity.grid import MAX_NEW_TOKENS, make_prompts
from tests.engine.parity.subject import Subject

TOTAL = pytest.StashKey[Parity]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Run these tests on one thread, the fixtures that outlive a test included.

    Threads bring small batches little, and where other processes want the cores too, they wait for
    each other most of the time: ten times slower was measured.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return (yield)
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="session")
def subjects() -> Callable[[str], Subject]:
    """Make a family's model and the oracle's answers on first use."""
    prompts = make_prompts()
    return lru_cache(
        lambda family: Subject(make_family(family), prompts, MAX_NEW_TOKENS, spare_tokens=48)
    )


@pytest.fixture(scope="session")
def default_model() -> DefaultModel:
    """The model that is served when none is named, fetched as a user's first start does it."""
    folder = find_model(ModelSettings(), cache_folder()).folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8")
    return DefaultModel(engine.load(folder, weights="fp32").hf_model, tokenizer.encode(text))


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[[Parity], None]:
    """Fail on mistakes; near ties are counted and reported at the end of the session."""
    total = request.config.stash.setdefault(TOTAL, Parity())

    def judge_parity(parity: Parity) -> None:
        total.merge(parity)
        parity.check()

    return judge_parity


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    total = config.stash.get(TOTAL, None)
    if total is not None:
        terminalreporter.section("greedy parity with transformers")
        terminalreporter.line(str(total))
