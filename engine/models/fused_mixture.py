"""A mixture of experts in one call, where a block routes as our kernel does.

The router is watched, not asked: what it chooses for random rows, and how much that counts, says
how many experts a row goes to and whether their weights are normalised. The block as a whole is
checked by `fusion`, like every replacement.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from engine.kernels.cpu.linear import LinearView, PackedLinear
from engine.kernels.cpu.mixture import Mixture, Routing
from engine.kernels.cpu.rows import Activation
from engine.models.joined_linears import AnyLinear, can_join, join
from engine.models.known_parts import MLP_LINEARS, activations_of, linears_of
from engine.models.quantized_experts import (
    DOWN,
    GATE_UP,
    QuantizedExperts,
    QuantizedStack,
    is_experts,
)
from engine.models.quantized_modules import QuantizedLinear
from engine.models.replacement import Forward, Replacement, is_plain_module


@dataclass(frozen=True, slots=True)
class MixtureParts:
    """The modules that a mixture consists of.

    Attributes:
        router: Has a `weight` [E, H].
        experts: E gated MLPs.
        shared: Gate, up and down of the expert that every row goes to; empty if there is none.
        shared_gate: Of that one, a layer with one output; empty if it counts 1.
        activation: Of all gates.
    """

    router: nn.Module
    experts: nn.Module
    shared: Sequence[AnyLinear]
    shared_gate: Sequence[AnyLinear]
    activation: Activation

    @property
    def sources(self) -> list[nn.Module]:
        """All modules whose parameters are used."""
        experts = [self.experts]
        if isinstance(self.experts, QuantizedExperts):
            experts = [self.experts.gate_up_proj, self.experts.down_proj]
        return [self.router, *experts, *self.shared, *self.shared_gate]

    @property
    def is_joined(self) -> bool:
        """Whether the shared expert, if there is one, is two products as the others are."""
        formats = {getattr(linear, "format", None) for linear in self.shared}
        return not self.shared or (can_join(self.shared[:-1]) and len(formats) == 1)


def find_parts(module: nn.Module) -> MixtureParts | None:
    """Return what a block consists of, if it is all of it known."""
    modules = {name: part for name, part in module._modules.items() if part is not None}
    router = modules.pop("gate", None) or modules.pop("router", None)
    experts, shared = modules.pop("experts", None), modules.pop("shared_expert", None)
    shared_gate = modules.pop("shared_expert_gate", None)
    if router is None or experts is None or modules:
        return None
    weight = router._parameters.get("weight")
    if not (isinstance(experts, QuantizedExperts) or is_experts(experts)) or weight is None:
        return None
    activations = activations_of(experts)
    linears = [] if shared is None else linears_of(shared, MLP_LINEARS[0])
    if len(activations) != 1 or linears is None:
        return None
    if shared is not None and activations_of(shared) != activations:
        return None
    gates = [] if shared_gate is None else linears_of(module, ("shared_expert_gate",))
    if gates is None or any(gate.bias is not None for gate in gates):
        return None
    parts = MixtureParts(router, experts, linears, gates, activations[0])
    return parts if parts.is_joined and all(map(is_plain_module, parts.sources)) else None


class FusedMixture(Replacement):
    """Router, experts and shared expert in one call.

    Attributes:
        mixture: What was built.
    """

    mixture: Mixture

    def __init__(
        self,
        module: nn.Module,
        library: ctypes.CDLL,
        parts: MixtureParts,
        routing: tuple[int, bool],
    ) -> None:
        """Replace a block that consists of these parts and routes as `watch_router` saw."""
        super().__init__(module, parts.sources)
        self._library = library
        self._parts = parts
        self._routing = Routing(*routing, shares=bool(parts.shared))

    def build(self) -> Forward:
        """See `Replacement.build`."""
        parts, library = self._parts, self._library
        experts = list(_views(library, parts.experts))
        if parts.shared:
            gate_up, down = join(library, parts.shared[:-1]), join(library, parts.shared[-1:])
            experts.append((gate_up.view, down.view))
        weight = parts.router.get_parameter("weight").detach()
        rows = torch.cat([weight, *map(_numbers, parts.shared_gate)])
        router = PackedLinear(library, rows, None).view
        mixture = Mixture(library, router, experts, self._routing, parts.activation)
        self.mixture = mixture
        return lambda x: mixture(x)


def watch_router(router: nn.Module, sample: torch.Tensor) -> tuple[int, bool] | None:
    """Return how many experts a router chooses, and whether what they count is normalised.

    Args:
        router: Returns logits [T, E], weights [T, C] and the numbers [T, C] of the chosen.
        sample: [T, H], so small that no expert takes all the weight.

    Returns:
        None if it chooses otherwise than by the softmax of its logits.
    """
    _, weights, chosen = router(sample)
    logits = sample @ router.get_parameter("weight").detach().T
    count = weights.shape[-1]
    highest, places = logits.softmax(dim=-1).topk(count, dim=-1)
    normalised = highest / highest.sum(dim=-1, keepdim=True)
    if not torch.equal(chosen, places):
        return None
    for normalises, expected in ((True, normalised), (False, highest)):
        if torch.allclose(weights, expected, rtol=1e-4, atol=1e-6):
            return count, normalises
    return None


def _views(library: ctypes.CDLL, experts: nn.Module) -> list[tuple[LinearView, LinearView]]:
    """Return gate and up, and down, of each expert as the kernels read them."""
    both = [_stack_views(library, experts, name) for name in (GATE_UP, DOWN)]
    return list(zip(*both, strict=True))


def _stack_views(library: ctypes.CDLL, experts: nn.Module, name: str) -> list[LinearView]:
    stack = getattr(experts, name)
    if not isinstance(stack, QuantizedStack):
        return [PackedLinear(library, matrix, None).view for matrix in stack.detach()]
    weights = [stack.expert(index) for index in range(stack.count)]
    return [LinearView(int(w.format), w.panels, None, *w.shape) for w in weights]


def _numbers(linear: AnyLinear) -> torch.Tensor:
    if isinstance(linear, QuantizedLinear):
        return linear.numbers()
    return linear.get_parameter("weight").detach()
