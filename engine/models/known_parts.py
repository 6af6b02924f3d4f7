"""What modules call the parts that our kernels know: their linear layers and their activation.

Names say what to try only; whether a module computes with its parts what our kernels would is found
out by comparing.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from engine.kernels.cpu.rows import Activation
from engine.models.joined_linears import AnyLinear
from engine.models.quantized_modules import QuantizedLinear
from engine.models.replacement import is_plain_module

# What modules call their linear layers: separate, or joined as they are stored.
ATTENTION_LINEARS = (("q_proj", "k_proj", "v_proj", "o_proj"), ("qkv_proj", "o_proj"))
MLP_LINEARS = (("gate_proj", "up_proj", "down_proj"), ("gate_up_proj", "down_proj"))
# What MLPs call their activation, and ours as torch computes them.
ACTIVATIONS = ("act_fn", "activation_fn", "act")
TORCH_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
}


def first_linears(module: nn.Module, choices: Sequence[tuple[str, ...]]) -> list[AnyLinear] | None:
    """Return a module's linear layers of the first of these names that it has."""
    return next(filter(None, (linears_of(module, names) for names in choices)), None)


def linears_of(module: nn.Module, names: tuple[str, ...]) -> list[AnyLinear] | None:
    """Return a module's linear layers of these names, if it has them all, plain ones."""
    found = [module._modules.get(name) for name in names]
    linears: list[AnyLinear] = [
        module
        for module in found
        if (type(module) is nn.Linear or isinstance(module, QuantizedLinear))
        and is_plain_module(module)
    ]
    return linears if len(linears) == len(names) else None


def activations_of(module: nn.Module) -> list[Activation]:
    """Return which activations of ours a module's own may be; all if it shows none."""
    own = next((getattr(module, name) for name in ACTIVATIONS if hasattr(module, name)), None)
    if own is None:
        return list(Activation)
    sample = torch.linspace(-8.0, 8.0, 641)
    return [
        ours
        for ours, compute in TORCH_ACTIVATIONS.items()
        if torch.allclose(own(sample), compute(sample), rtol=0.0, atol=1e-6)
    ]
