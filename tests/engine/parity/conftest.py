"""What the parity tests share: models with the oracle's answers, and a count of near ties."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import pytest
import torch

from tests.engine.parity.comparison import Parity
from tests.engine.parity.subject import Subject

TOTAL = pytest.StashKey[Parity]()


@pytest.fixture(autouse=True)
def one_thread_for_tiny_models(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads cost a tiny model more than they bring, above all on a busy machine."""
    before = torch.get_num_threads()
    if "default_model" not in request.fixturenames:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def subjects() -> Callable[[str], Subject]:
    """Make a family's model and the oracle's answers on first use."""
    return lru_cache(Subject)


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
