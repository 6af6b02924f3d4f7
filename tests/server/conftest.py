"""Fixtures of the HTTP tests: tokenizers, and a live server over a scripted engine."""

from collections.abc import Iterator

import pytest
from transformers import PreTrainedTokenizerFast

from server.vocabulary import Vocabulary
from tests.server.fakes import make_byte_level_tokenizer
from tests.server.live import LiveServer, run_live


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerFast:
    return make_byte_level_tokenizer()


@pytest.fixture(scope="session")
def vocabulary(byte_level) -> Vocabulary:
    return Vocabulary(byte_level)


@pytest.fixture
def live() -> Iterator[LiveServer]:
    with run_live() as server:
        yield server
        server.manager.paused.clear()
        server.manager.wait_until(lambda: server.manager.num_active == 0)
        assert server.manager.num_handlers == 0, "a result handler was left behind"
        assert server.state.client.num_open == 0
        server.manager.wait_until(lambda: server.state.num_active == 0)
