"""The documented API and the wire are covered whole, and docs/compatibility.md says what is so."""

import dataclasses
import inspect
from typing import Any

import pytest
import torch
from transformers.generation.configuration_utils import (
    ContinuousBatchingConfig as DocumentedConfig,
)
from transformers.generation.continuous_batching import (
    ContinuousBatchingManager as DocumentedManager,
)
from transformers.generation.continuous_batching import ContinuousMixin as DocumentedMixin

import engine
from api_schemas import Handling
from api_schemas.endpoints import REQUEST_BODIES
from engine.config_checks import REFUSED_FIELDS, check_config
from scripts.compatibility import ENTRY_POINTS, MANAGER_METHODS, PAGE, render


def config_with(field: str, value: Any) -> engine.ContinuousBatchingConfig:
    settings: dict[str, Any] = {field: value}
    return engine.ContinuousBatchingConfig(**settings)


def parameters_of(function):
    """Names and defaults, in order, as far as the documentation goes."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.default, p.kind) for p in found]


def test_the_page_says_what_the_code_does():
    assert PAGE.read_text() == render(), "run scripts/compatibility.py"


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_an_entry_point_has_the_documented_signature(name):
    ours, theirs = getattr(engine.ContinuousMixin, name), getattr(DocumentedMixin, name)
    assert parameters_of(ours)[: len(parameters_of(theirs))] == parameters_of(theirs)


@pytest.mark.parametrize("name", MANAGER_METHODS)
def test_a_manager_method_has_the_documented_signature(name):
    ours = getattr(engine.ContinuousBatchingManager, name)
    theirs = getattr(DocumentedManager, name)
    assert parameters_of(ours)[: len(parameters_of(theirs))] == parameters_of(theirs)


def test_no_public_method_of_the_documented_manager_is_missing():
    public = {name for name in vars(DocumentedManager) if not name.startswith("_")}
    assert public - set(dir(engine.ContinuousBatchingManager)) == set()


def test_the_configuration_has_the_documented_fields_and_defaults():
    ours = inspect.signature(engine.ContinuousBatchingConfig).parameters
    theirs = inspect.signature(DocumentedConfig).parameters
    defaults = [(p.name, p.default) for p in ours.values()]
    assert defaults[: len(theirs)] == [(p.name, p.default) for p in theirs.values()]


@pytest.mark.parametrize("field", REFUSED_FIELDS)
def test_a_refused_field_is_refused_by_name_and_its_neutral_values_pass(field):
    device = torch.device("cpu")
    for neutral in REFUSED_FIELDS[field][0]:
        check_config(config_with(field, neutral), device)
    with pytest.raises(engine.UnsupportedConfigError, match=field) as refusal:
        check_config(config_with(field, 7), device)
    assert refusal.value.field == field


def test_statuses_keep_their_documented_values():
    expected = {"PENDING": 0, "PREFILLING": 1, "DECODING": 2, "FINISHED": 3, "FAILED": 4}
    assert {name: engine.RequestStatus[name].value for name in expected} == expected
    assert engine.RequestStatus.CANCELLED > engine.RequestStatus.FINISHED


def test_workload_hints_keep_their_documented_fields():
    assert [field.name for field in dataclasses.fields(engine.WorkloadHints)] == [
        "max_prompt_length",
        "max_generated_length",
        "num_requests",
    ]


@pytest.mark.parametrize("model", {body: None for _, body in REQUEST_BODIES})
def test_every_supported_field_is_in_the_model_and_every_field_of_the_model_in_the_table(model):
    table = model.support
    supported = {field.name for field in table if field.handling is Handling.SUPPORTED}
    assert supported == set(model.model_fields) & supported
    assert set(model.model_fields) <= {field.name for field in table}
