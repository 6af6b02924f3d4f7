"""Linear layers with the same input, computed as one."""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from engine.kernels.cpu.linear import PANEL, LinearView, PackedLinear
from engine.kernels.cpu.panel_memory import panel_memory
from engine.kernels.cpu.quantized_linear import QuantizedWeight
from engine.models.quantized_modules import QuantizedLinear

AnyLinear = nn.Linear | QuantizedLinear


class Product(Protocol):
    """A matrix product, float32."""

    @property
    def view(self) -> LinearView:
        """What other kernels are to know of it."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., N] for x [..., K]."""
        ...


class QuantizedProduct:
    """`Product` over one packed weight."""

    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> None:
        """Hold a weight and a bias [N] float32."""
        self._weight = weight
        self._bias = bias

    @property
    def view(self) -> LinearView:
        """See `Product`."""
        weight = self._weight
        return LinearView(int(weight.format), weight.panels, self._bias, *weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Product`."""
        return self._weight.linear(x, self._bias)


class SeparateProducts:
    """`Product` of layers that cannot be joined: each computes by itself."""

    def __init__(self, products: Sequence[Product]) -> None:
        """Hold the layers' products, in the order of their outputs."""
        self._products = products

    @property
    def view(self) -> LinearView:
        """There is none; `can_join` tells before."""
        raise AssertionError("layers that are not joined are no single layer")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Product`."""
        return torch.cat([product(x) for product in self._products], dim=-1)


def join(library: ctypes.CDLL, linears: Sequence[AnyLinear]) -> Product:
    """Return linear layers with the same input as one.

    Packed layers hold no second copy: their panels become parts of one tensor. Where that cannot be
    (different formats, a layer that ends within a panel), each computes by itself.

    Returns:
        [..., K] to [..., sum of N], float32.
    """
    if not can_join(linears):
        return SeparateProducts([join(library, [linear]) for linear in linears])
    bias = _bias(linears)
    packed = [linear for linear in linears if isinstance(linear, QuantizedLinear)]
    if packed:
        return QuantizedProduct(_share(packed), bias)
    return PackedLinear(library, torch.cat([_matrix(linear) for linear in linears]), bias)


def can_join(linears: Sequence[AnyLinear]) -> bool:
    """Return whether the layers can be one: plain ones, or packed ones whose panels fit."""
    packed = [linear for linear in linears if isinstance(linear, QuantizedLinear)]
    if not packed or len(linears) == 1:
        return True
    return (
        len(packed) == len(linears)
        and all(linear.format == packed[0].format for linear in packed)
        and all(linear.out_features % PANEL == 0 for linear in packed[:-1])
    )


def _matrix(linear: AnyLinear) -> torch.Tensor:
    return linear.get_parameter("weight").detach()


def _bias(linears: Sequence[AnyLinear]) -> torch.Tensor | None:
    """Return the layers' biases as one, with zeros for those that have none."""
    biases: list[torch.Tensor | None] = [linear.bias for linear in linears]
    if all(bias is None for bias in biases):
        return None
    return torch.cat(
        [
            torch.zeros(linear.out_features) if bias is None else bias.detach()
            for linear, bias in zip(linears, biases, strict=True)
        ]
    )


def _share(linears: Sequence[QuantizedLinear]) -> QuantizedWeight:
    """Let the layers' panels be parts of one tensor, and return that one's weight.

    That of one layer is brought to the others' memory as well, once: a layer may have several uses.
    """
    if len(linears) == 1 and panel_memory().holds(linears[0].panels):
        return linears[0].packed
    numbers = [len(linear.panels) for linear in linears]
    panels = panel_memory().empty(sum(numbers), linears[0].panels.shape[1], dtype=torch.uint8)
    with torch.inference_mode(False), torch.no_grad():
        parts = torch.split(panels, numbers)
        for linear, part in zip(linears, parts, strict=True):
            part.copy_(linear.panels)
            linear.panels = part
    columns = sum(linear.out_features for linear in linears)
    return QuantizedWeight(linears[0].format, panels, (columns, linears[0].in_features))
