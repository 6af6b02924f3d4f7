"""Replacements compute with the weights that the model has now, and leave no trace on it."""

import contextlib

import pytest
import torch
from torch import nn

from engine.models.fusion import find_replacements
from engine.models.replacement import Replacement, in_place

X = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))


def no_attention(step):
    return contextlib.nullcontext()


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 16, bias=False)).requires_grad_(False)


def check(model: nn.Sequential, packed: list[Replacement]) -> None:
    x = X.to(next(model.parameters()).dtype)
    expected = model(x)
    with in_place(packed):
        output = model(x)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_packed_layers_compute_while_in_place(model):
    packed = find_replacements(model, no_attention)
    assert len(packed) == 2
    with in_place(packed):
        assert all("forward" in vars(layer) for layer in model)
    check(model, packed)


def test_weights_changed_in_place_are_followed(model):
    packed = find_replacements(model, no_attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.5)
    check(model, packed)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_parameters_that_are_replaced_are_followed(model, name):
    packed = find_replacements(model, no_attention)
    setattr(model[0], name, nn.Parameter(torch.randn_like(getattr(model[0], name))))
    check(model, packed)


def test_a_loaded_state_is_followed(model):
    packed = find_replacements(model, no_attention)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    for assign in (False, True):
        model.load_state_dict(state, assign=assign)
        check(model, packed)


def test_a_dtype_without_kernels_is_left_to_torch(model):
    packed = find_replacements(model, no_attention)
    check(model.to(torch.bfloat16), packed)
    check(model.to(torch.float32), packed)


def test_the_model_is_whole_again_after_an_error(model):
    packed = find_replacements(model, no_attention)
    with pytest.raises(RuntimeError, match="a test"), in_place(packed):
        raise RuntimeError("a test")
    assert not any("forward" in vars(module) for module in model.modules())
