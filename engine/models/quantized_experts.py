"""Experts whose weights are packed; they take the place of transformers' stacks of matrices.

A model with these in it is a model like any other: its own forward computes with the numbers that
the packed weights mean.
"""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from engine.kernels.cpu.linear import PANEL
from engine.kernels.cpu.quantized_linear import Format, QuantizedWeight
from engine.models.quantization import quantize
from engine.models.quantized_modules import QuantizedModule

# What experts call their matrices: [E, 2 I, H], gate above up, and [E, H, I].
GATE_UP, DOWN = "gate_up_proj", "down_proj"


def is_experts(module: nn.Module) -> bool:
    """Return whether a module is a stack of gated MLPs without biases, as transformers has them."""
    names = {name for name, parameter in module._parameters.items() if parameter is not None}
    if names != {GATE_UP, DOWN} or not callable(getattr(module, "act_fn", None)):
        return False
    gate_up, down = module.get_parameter(GATE_UP), module.get_parameter(DOWN)
    if gate_up.dim() != 3 or down.dim() != 3:
        return False
    count, both, hidden = gate_up.shape
    return tuple(down.shape) == (count, hidden, both // 2) and both % 2 == 0


def fits_panels(module: nn.Module) -> bool:
    """Return whether no panel of packed experts would belong to two of them."""
    return all(module.get_parameter(name).shape[1] % PANEL == 0 for name in (GATE_UP, DOWN))


def pack_experts(library: ctypes.CDLL, experts: nn.Module, kind: Format) -> "QuantizedExperts":
    """Return packed experts with the weights of these.

    Args:
        library: The kernels.
        experts: See `is_experts` and `fits_panels`.
        kind: How the weights are stored.

    Raises:
        ValueError: Some weights cannot be.
    """
    gate_up, down = (
        _pack_stack(library, experts.get_parameter(name), kind) for name in (GATE_UP, DOWN)
    )
    return QuantizedExperts(gate_up, down, experts.act_fn)  # type: ignore[arg-type]


def _pack_stack(library: ctypes.CDLL, matrices: torch.Tensor, kind: Format) -> "QuantizedStack":
    count, rows, depth = matrices.shape
    # One after another: rounding takes several times what the result does.
    panels = torch.cat([quantize(matrix, kind).pack(library).panels for matrix in matrices])
    return QuantizedStack(QuantizedWeight(kind, panels, (count * rows, depth)), count)


class QuantizedStack(QuantizedModule):
    """The matrices of several experts, one below another."""

    def __init__(self, weight: QuantizedWeight, count: int) -> None:
        """Hold a packed weight [count * N, K]; N is a multiple of a panel's rows."""
        super().__init__(weight)
        self.count = count

    def expert(self, index: int) -> QuantizedWeight:
        """Return one matrix: [N, K]."""
        rows = self.shape[0] // self.count
        panels = rows // PANEL
        part = self.packed.panels[index * panels : (index + 1) * panels]
        return QuantizedWeight(self.format, part, (rows, self.shape[1]))


class QuantizedExperts(nn.Module):
    """Gated MLPs, of which each row goes to those that are chosen for it.

    Attributes:
        gate_up_proj: Gate above up, of each.
        down_proj: After these.
        num_experts: How many there are.
    """

    def __init__(
        self,
        gate_up: QuantizedStack,
        down: QuantizedStack,
        activation: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Join the matrices; `activation` is that of the gates."""
        super().__init__()
        self.gate_up_proj = gate_up
        self.down_proj = down
        self.num_experts = gate_up.count
        self.act_fn = activation

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [T, H] float32.

        Args:
            hidden_states: [T, H].
            top_k_index: [T, C], the experts of each row.
            top_k_weights: [T, C], what they count.
        """
        x = hidden_states.detach().float()
        result = torch.zeros_like(x)
        for expert in sorted(set(top_k_index.flatten().tolist())):
            rows, places = torch.where(top_k_index == expert)
            gate, up = self.gate_up_proj.expert(expert).linear(x[rows]).chunk(2, dim=-1)
            out = self.down_proj.expert(expert).linear(self.act_fn(gate) * up)
            result.index_add_(0, rows, out * top_k_weights[rows, places, None])
        return result.to(hidden_states.dtype)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Take the matrices of an ordinary checkpoint, too."""
        for name in (GATE_UP, DOWN):
            weight = state_dict.get(f"{prefix}{name}")
            if weight is not None:
                state_dict[f"{prefix}{name}.weight"] = weight.flatten(0, 1)  # type: ignore[index]
                del state_dict[f"{prefix}{name}"]  # type: ignore[attr-defined]
        super()._load_from_state_dict(state_dict, prefix, *arguments)
