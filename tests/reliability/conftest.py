"""A tiny model for servers with a real engine."""

import pytest
from transformers import AutoTokenizer

import engine
from tests.integration.engine_server import ServedModel


@pytest.fixture(scope="session")
def tiny_model(tiny_model_folder) -> ServedModel:
    model = engine.load(tiny_model_folder)
    return ServedModel(model, AutoTokenizer.from_pretrained(tiny_model_folder))
