"""Servers with a real engine: of the default model in a process, of a tiny one in this process."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import openai
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import engine
from server.environment import cache_folder
from server.model_store import StoredModel, find_model
from server.settings import ModelSettings
from tests.integration.engine_server import EngineServer, ServedModel, run_engine_server
from tests.serve_process import ServeProcess, serving

DEFAULT_SETTINGS = ("--config", "configs/cpu.toml", "--port", "0")
FIRST_ANSWER = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
SECONDS_TO_FIRST_ANSWER = pytest.StashKey[float]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report what is measured and, on a machine that does other things, not judged."""
    seconds = config.stash.get(SECONDS_TO_FIRST_ANSWER, None)
    if seconds is not None:
        terminalreporter.section("start of the default model")
        terminalreporter.line(f"first answer after {seconds:.1f} s")


@dataclass(frozen=True)
class DefaultServer:
    """A process that serves the default model.

    Attributes:
        process: It.
        model: The name it serves.
        seconds_to_first_answer: From its start.
    """

    process: ServeProcess
    model: str
    seconds_to_first_answer: float

    @property
    def url(self) -> str:
        return self.process.url


@pytest.fixture(scope="session")
def default_model() -> StoredModel:
    """The model that is served when none is named, fetched as a user's first start does it."""
    return find_model(ModelSettings(), cache_folder())


@pytest.fixture(scope="session")
def default_model_tokenizer(default_model) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(default_model.folder)


@pytest.fixture(scope="session")
def default_server(default_model, pytestconfig) -> Iterator[DefaultServer]:
    """What `make serve` starts, without the wait for the model; nobody may stop it."""
    started = time.monotonic()
    with serving(*DEFAULT_SETTINGS, start_seconds=300) as process:
        answer = httpx.post(f"{process.url}/v1/completions", json=FIRST_ANSWER, timeout=60)
        assert answer.status_code == 200
        seconds = time.monotonic() - started
        pytestconfig.stash[SECONDS_TO_FIRST_ANSWER] = seconds
        yield DefaultServer(process, default_model.name, seconds)
        process.check()


@pytest.fixture
def client(default_server) -> Iterator[openai.OpenAI]:
    """The official client, of the default model's server."""
    with openai.OpenAI(base_url=f"{default_server.url}/v1", api_key="none") as made:
        yield made


@pytest.fixture(scope="session")
def tiny_model(tiny_model_folder) -> ServedModel:
    model = engine.load(tiny_model_folder)
    return ServedModel(model, AutoTokenizer.from_pretrained(tiny_model_folder))


@pytest.fixture(scope="module")
def shared_server(tiny_model) -> Iterator[EngineServer]:
    with run_engine_server(tiny_model) as server:
        yield server


@pytest.fixture
def server(shared_server) -> Iterator[EngineServer]:
    """A server of the tiny model that must be left idle and with all its blocks free."""
    yield shared_server
    shared_server.wait_until_idle()
