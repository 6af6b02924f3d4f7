"""Fixtures of the HTTP tests: tokenizers, and a live server over a scripted engine."""

from collections.abc import Iterator

import pytest
from transformers import PreTrainedTokenizerFast

from server.settings import ModelSettings, ServerSettings, Settings
from server.vocabulary import Vocabulary
from tests.server.fakes import make_byte_level_tokenizer
from tests.server.live import LiveServer, run_live


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerFast:
    return make_byte_level_tokenizer()


@pytest.fixture(scope="session")
def vocabulary(byte_level) -> Vocabulary:
    return Vocabulary(byte_level)


@pytest.fixture(scope="module")
def shared_live() -> Iterator[LiveServer]:
    with run_live() as server:
        yield server


@pytest.fixture
def live(shared_live) -> Iterator[LiveServer]:
    """A server as if it were new; it must be left without a trace of the test's requests."""
    shared_live.reset()
    yield shared_live
    assert_nothing_is_left(shared_live)


@pytest.fixture
def mortal_live() -> Iterator[LiveServer]:
    """A server of the test's own, whose engine it may kill."""
    settings = Settings(
        model=ModelSettings(served_names=("tiny",)),
        server=ServerSettings(port=0, engine_failure="stay"),
    )
    with run_live(settings=settings) as server:
        yield server
        assert_nothing_is_left(server)


def assert_nothing_is_left(server: LiveServer) -> None:
    manager = server.manager
    manager.paused.clear()
    manager.wait_until(lambda: manager.num_active == 0)
    assert manager.num_handlers == 0, "a result handler was left behind"
    assert server.state.client.num_open == 0
    manager.wait_until(lambda: server.state.num_active == 0)
