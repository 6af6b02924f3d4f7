"""The replacements themselves: what one module does, in a few calls of our kernels.

Built by `fusion`, which finds the modules they fit and checks each against the module's own
forward. Everything is fp32 on the CPU.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.attention.interface import STEP_ATTRIBUTE, AttentionOptions
from engine.kernels.cpu.rows import Activation, Norm, gate_mul, norm_rows, rotate
from engine.models.joined_linears import AnyLinear, Product, can_join, join
from engine.models.replacement import Forward, Replacement


class SingleLinear(Replacement):
    """A linear layer by itself."""

    def __init__(self, module: nn.Linear, library: ctypes.CDLL) -> None:
        """Replace one linear layer."""
        super().__init__(module, [module])
        self._library = library
        self._linear = module

    def build(self) -> Forward:
        """See `Replacement.build`."""
        linear = join(self._library, [self._linear])
        # A function, which compiled code knows by its text; an object it would know by its identity
        # and would have to be compiled again for other weights.
        return lambda x: linear(x)


@dataclass(frozen=True, slots=True)
class NormKind:
    """How a norm computes.

    Attributes:
        epsilon: Added to the mean square.
        centres: Whether a row's mean is taken away first.
        gain: Added to the weight; some norms store it less 1.
    """

    epsilon: float
    centres: bool
    gain: float


class FusedNorm(Replacement):
    """A norm in one call.

    Attributes:
        width: Of its rows.
        norm: What was built.
    """

    norm: Norm

    def __init__(self, module: nn.Module, library: ctypes.CDLL, width: int, kind: NormKind) -> None:
        """Replace a norm of rows of a width; without a `weight` it has one of ones."""
        super().__init__(module, [module])
        self._library = library
        self.width = width
        self._kind = kind

    def build(self) -> Forward:
        """See `Replacement.build`."""
        library, kind = self._library, self._kind
        weight, bias = (self.module._parameters.get(name) for name in ("weight", "bias"))
        weights = torch.ones(self.width) if weight is None else weight.detach() + kind.gain
        biases = None if bias is None else bias.detach()
        norm = self.norm = Norm(weights, kind.epsilon, biases, kind.centres)
        return lambda x: norm_rows(library, x, norm)


class FusedMLP(Replacement):
    """down(activation(gate(x)) * up(x)) with gate and up as one product.

    Attributes:
        width: Of gate and up each.
        activation: Of the gate.
        is_joined: Whether gate and up are one product.
        products: Gate and up, and down, once they are built.
    """

    products: tuple[Product, Product]

    def __init__(
        self,
        module: nn.Module,
        library: ctypes.CDLL,
        linears: Sequence[AnyLinear],
        activation: Activation,
    ) -> None:
        """Replace a gated MLP; `linears` are gate and up, as one or as two, and down."""
        super().__init__(module, linears)
        self.width = linears[-1].in_features
        self.activation = activation
        self.is_joined = can_join(linears[:-1])
        self._library = library
        self._linears = linears

    def build(self) -> Forward:
        """See `Replacement.build`."""
        gate_up = join(self._library, self._linears[:-1])
        down = join(self._library, self._linears[-1:])
        library, activation = self._library, int(self.activation)
        self.products = (gate_up, down)
        return lambda x: down(gate_mul(library, gate_up(x), activation))


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What an attention module does beside its matrix products.

    Attributes:
        head_dim: Width of a head.
        widths: Of all query, all key and all value heads.
        turns: Whether queries and keys are turned by their positions.
        options: How the layer attends, as its own forward said.
    """

    head_dim: int
    widths: tuple[int, int, int]
    turns: bool
    options: AttentionOptions


class FusedAttention(Replacement):
    """Query, key and value as one product, rotary positions, attention, output.

    Attributes:
        shape: What it does beside its products.
        norms: The modules that norm queries and keys, or None.
        is_joined: Whether query, key and value are one product.
        products: Query, key and value, and output, once they are built.
    """

    products: tuple[Product, Product]

    def __init__(
        self,
        module: nn.Module,
        library: ctypes.CDLL,
        linears: Sequence[AnyLinear],
        shape: AttentionShape,
    ) -> None:
        """Replace an attention module.

        Args:
            module: The module.
            library: The kernels.
            linears: Its query, key and value, as one or as three, and its output.
            shape: What it does beside these.
        """
        super().__init__(module, linears)
        self.shape = shape
        self.is_joined = can_join(linears[:-1])
        self.norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
        self._library = library
        self._linears = linears

    def build(self) -> Forward:
        """See `Replacement.build`."""
        qkv = join(self._library, self._linears[:-1])
        out = join(self._library, self._linears[-1:])
        self.products = (qkv, out)
        module, library, shape = self.module, self._library, self.shape
        layer = int(module.__dict__["layer_idx"])
        query_norm, key_norm = self.norms
        widths, head_dim = list(shape.widths), shape.head_dim

        def forward(
            hidden_states: torch.Tensor,
            position_embeddings: tuple[torch.Tensor, torch.Tensor],
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            parts = torch.split(qkv(hidden_states)[0], widths, dim=1)
            query = _heads(parts[0], query_norm, head_dim)
            key = _heads(parts[1], key_norm, head_dim)
            if shape.turns:
                cosines, sines = position_embeddings[0][0], position_embeddings[1][0]
                query = rotate(library, query, cosines, sines)
                key = rotate(library, key, cosines, sines)
            value = parts[2].view(len(parts[2]), -1, head_dim)
            attended = module.__dict__[STEP_ATTRIBUTE].attend(
                layer, query, key, value, shape.options
            )
            return out(attended.flatten(1)).unsqueeze(0), None

        return forward


def _heads(part: torch.Tensor, norm: nn.Module | None, head_dim: int) -> torch.Tensor:
    """Return [T, H, D] of [T, H * D], normed by heads or by rows as the norm's width says."""
    rows = len(part)
    if norm is None:
        return part.view(rows, -1, head_dim)
    if norm.get_parameter("weight").shape[0] == head_dim:
        heads: torch.Tensor = norm(part.view(rows, -1, head_dim))
        return heads
    normed: torch.Tensor = norm(part)
    return normed.view(rows, -1, head_dim)
