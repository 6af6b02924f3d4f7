"""Packed layers compute with the weights that the model has now, and leave no trace on it."""

import pytest
import torch
from torch import nn

from engine.models.packed_linears import PackedLinears

X = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 16, bias=False)).requires_grad_(False)


def check(model: nn.Sequential, packed: PackedLinears) -> None:
    x = X.to(next(model.parameters()).dtype)
    expected = model(x)
    with packed.in_place():
        output = model(x)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_packed_layers_compute_while_in_place(model):
    packed = PackedLinears(model)
    assert len(packed) == 2
    with packed.in_place():
        assert all("forward" in vars(layer) for layer in model)
    check(model, packed)


def test_weights_changed_in_place_are_followed(model):
    packed = PackedLinears(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.5)
    check(model, packed)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_parameters_that_are_replaced_are_followed(model, name):
    packed = PackedLinears(model)
    setattr(model[0], name, nn.Parameter(torch.randn_like(getattr(model[0], name))))
    check(model, packed)


def test_a_loaded_state_is_followed(model):
    packed = PackedLinears(model)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    for assign in (False, True):
        model.load_state_dict(state, assign=assign)
        check(model, packed)


def test_a_dtype_without_kernels_is_left_to_torch(model):
    packed = PackedLinears(model)
    check(model.to(torch.bfloat16), packed)
    check(model.to(torch.float32), packed)


def test_the_model_is_whole_again_after_an_error(model):
    packed = PackedLinears(model)
    with pytest.raises(RuntimeError, match="a test"), packed.in_place():
        raise RuntimeError("a test")
    assert not any("forward" in vars(module) for module in model.modules())
