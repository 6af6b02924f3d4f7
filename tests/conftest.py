"""What every test needs to know about the machine it runs on."""

import os

# Two test processes, or a test beside a server, must not fight for the cores; set before torch
# reads it. The hub is never asked: everything the tests use is made or found locally.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU that is not there."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)
