"""The replacements themselves: what one module does, in a few calls of our kernels.

Built by `fusion`, which finds the modules they fit and checks each against the module's own
forward. Everything is fp32 on the CPU.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from engine.attention.interface import STEP_ATTRIBUTE, AttentionOptions
from engine.kernels.cpu.decoder import Norm
from engine.kernels.cpu.rows import rms_norm, rotate, silu_mul
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


class FusedNorm(Replacement):
    """A root-mean-square norm in one call.

    Attributes:
        norm: What was built.
    """

    norm: Norm

    def __init__(
        self, module: nn.Module, library: ctypes.CDLL, epsilon: float, gain: float
    ) -> None:
        """Replace a norm.

        Args:
            module: Has a `weight` [W].
            library: The kernels.
            epsilon: Added to the mean square.
            gain: Added to the weight; Gemma's norms store it less 1.
        """
        super().__init__(module, [module])
        self._library = library
        self._epsilon = epsilon
        self._gain = gain

    def build(self) -> Forward:
        """See `Replacement.build`."""
        weight = self.module.get_parameter("weight").detach() + self._gain
        library, epsilon = self._library, self._epsilon
        self.norm = Norm(weight, epsilon)
        return lambda x: rms_norm(library, x, weight, epsilon)


class FusedMLP(Replacement):
    """down(silu(gate(x)) * up(x)) with gate and up as one product.

    Attributes:
        width: Of gate and up each.
        is_joined: Whether gate and up are one product.
        products: Gate and up, and down, once they are built.
    """

    products: tuple[Product, Product]

    def __init__(
        self, module: nn.Module, library: ctypes.CDLL, linears: Sequence[AnyLinear]
    ) -> None:
        """Replace a gated MLP; `linears` are gate, up and down."""
        super().__init__(module, linears)
        self.width = linears[0].out_features
        self.is_joined = can_join(linears[:2])
        self._library = library
        self._linears = linears

    def build(self) -> Forward:
        """See `Replacement.build`."""
        gate_up = join(self._library, self._linears[:2])
        down = join(self._library, self._linears[2:])
        library = self._library
        self.products = (gate_up, down)
        return lambda x: down(silu_mul(library, gate_up(x)))


class FusedAttention(Replacement):
    """Query, key and value as one product, rotary positions, attention, output.

    Attributes:
        options: How the layer attends, as its own forward said.
        head_dim: Width of a head.
        widths: Of all query, key and value heads.
        norms: The modules that norm each query and each key, or None.
        is_joined: Whether query, key and value are one product.
        products: Query, key and value, and output, once they are built.
    """

    products: tuple[Product, Product]

    def __init__(
        self,
        module: nn.Module,
        library: ctypes.CDLL,
        linears: Sequence[AnyLinear],
        head_dim: int,
        options: AttentionOptions,
    ) -> None:
        """Replace an attention module; `linears` are its query, key, value and output."""
        super().__init__(module, linears)
        self.options = options
        self._library = library
        self._linears = linears
        self.head_dim = head_dim
        self.is_joined = can_join(linears[:3])
        self.widths = [linear.out_features for linear in linears[:3]]
        self.norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]

    def build(self) -> Forward:
        """See `Replacement.build`."""
        qkv = join(self._library, self._linears[:3])
        out = join(self._library, self._linears[3:])
        self.products = (qkv, out)
        widths = self.widths
        module, library, options = self.module, self._library, self.options
        layer = int(module.__dict__["layer_idx"])
        query_norm, key_norm = self.norms
        shape = (-1, self.head_dim)

        def forward(
            hidden_states: torch.Tensor,
            position_embeddings: tuple[torch.Tensor, torch.Tensor],
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            parts = torch.split(qkv(hidden_states)[0], widths, dim=1)
            query, key, value = (part.view(part.shape[0], *shape) for part in parts)
            query = query if query_norm is None else query_norm(query)
            key = key if key_norm is None else key_norm(key)
            cosines, sines = position_embeddings[0][0], position_embeddings[1][0]
            attended = module.__dict__[STEP_ATTRIBUTE].attend(
                layer,
                rotate(library, query, cosines, sines),
                rotate(library, key, cosines, sines),
                value,
                options,
            )
            return out(attended.flatten(1)).unsqueeze(0), None

        return forward
