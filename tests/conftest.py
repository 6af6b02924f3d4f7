"""What every test needs to know about the machine it runs on, and the servers they share."""

import os

# Two test processes, or a test beside a server, must not fight for the cores, nor spin on them
# while they wait; set before torch reads it. The hub is never asked: everything the tests use is
# made or found locally.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.serve_process import ServeProcess, serving
from tests.tiny_model import make_tiny_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU that is not there."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer model, called tiny."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_model_server(tiny_model_folder: Path) -> Iterator[ServeProcess]:
    """The process behind `served_tiny_model`."""
    with serving(str(tiny_model_folder)) as server:
        yield server


@pytest.fixture
def served_tiny_model(tiny_model_server: ServeProcess) -> ServeProcess:
    """A server process that serves the tiny model to whoever asks; nobody may stop it."""
    tiny_model_server.check()
    return tiny_model_server
