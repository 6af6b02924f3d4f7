"""Finds modules whose forward our kernels can compute in fewer, faster calls.

Runs once, when a model is taken over. Modules are recognised by structure, not by class, and every
single one is checked: a replacement that does not give what the module's own forward gives on
random inputs is left out, and the module stays as it is.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn

from engine.attention.interface import AttentionOptions, StepAttention
from engine.cache.sizing import available_host_bytes
from engine.kernels.cpu.library import load_library
from engine.models.agreement import (
    CHECK_TOKENS,
    NORM_MAGNITUDES,
    agrees,
    no_error,
    random_rows,
    runs,
)
from engine.models.fused_layers import (
    AttentionShape,
    FusedAttention,
    FusedMLP,
    FusedNorm,
    NormKind,
    SingleLinear,
)
from engine.models.fused_mixture import FusedMixture, find_parts, watch_router
from engine.models.joined_linears import AnyLinear
from engine.models.known_parts import (
    ATTENTION_LINEARS,
    MLP_LINEARS,
    activations_of,
    first_linears,
)
from engine.models.quantized_experts import is_experts
from engine.models.quantized_modules import QuantizedLinear
from engine.models.replacement import Replacement, is_plain_module
from engine.models.rotary_operator import rotary_modules

logger = logging.getLogger(__name__)

SwitchAttention = Callable[[StepAttention], AbstractContextManager[None]]

# The packed copies may take this share of the free memory; a model too large for that keeps its
# own matrix products and leaves the memory to the cache.
MAX_MEMORY_SHARE = 0.25


def find_replacements(model: nn.Module, switch_attention: SwitchAttention) -> list[Replacement]:
    """Return checked replacements for a model's modules; none where there are no kernels.

    Args:
        model: The whole model.
        switch_attention: Points the model's attention at a `StepAttention`.
    """
    linears = [m for m in model.modules() if type(m) is nn.Linear and is_plain_module(m)]
    is_packed = any(isinstance(m, QuantizedLinear) for m in model.modules())
    library = load_library() if linears or is_packed else None
    if library is None:
        return []
    experts = [m for m in model.modules() if is_experts(m) and is_plain_module(m)]
    most = MAX_MEMORY_SHARE * available_host_bytes()
    if _num_bytes(linears) > most:
        logger.warning(
            "packing the weights would take %.1f GiB: not done", _num_bytes(linears) / 2**30
        )
        return []
    packs_experts = _num_bytes(linears) + _num_bytes(experts) <= most
    if not packs_experts:
        logger.warning(
            "packing the experts would take %.1f GiB: not done", _num_bytes(experts) / 2**30
        )
    fused: list[Replacement] = []
    angle_widths = sorted({w for _, widths in rotary_modules(model) for w in widths.values()})
    inside: set[int] = set()
    with torch.inference_mode():
        for module in model.modules():
            # What a mixture consists of is computed with it.
            if id(module) in inside:
                continue
            found = (
                _fuse_norm(module, library)
                or _fuse_mlp(module, library)
                or (_fuse_mixture(module, library) if packs_experts else None)
                or _fuse_attention(module, library, switch_attention, angle_widths)
            )
            if found is not None:
                fused.append(found)
            if isinstance(found, FusedMixture):
                inside.update(map(id, module.modules()))
    covered = {id(source) for replacement in fused for source in replacement.sources}
    rest = [SingleLinear(linear, library) for linear in linears if id(linear) not in covered]
    return [*fused, *rest]


def _num_bytes(modules: Sequence[nn.Module]) -> int:
    """Return what the parameters of modules take."""
    return sum(p.numel() * p.element_size() for m in modules for p in m.parameters(recurse=False))


def _fuse_norm(module: nn.Module, library: ctypes.CDLL) -> Replacement | None:
    """Replace a norm over its last dimension, centred or not, with or without a weight."""
    weight = module._parameters.get("weight")
    # One of a fixed shape and epsilon has no parameter that would tell.
    shape = getattr(module, "normalized_shape", ()) if weight is None else tuple(weight.shape)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-5))
    if not isinstance(epsilon, float) or len(shape) != 1 or not is_plain_module(module):
        return None
    if not set(module._parameters) <= {"weight", "bias"} or module._modules:
        return None
    for centres, gain in ((False, 0.0), (False, 1.0), (True, 0.0), (True, 1.0)):
        candidate = FusedNorm(module, library, shape[0], NormKind(epsilon, centres, gain))
        if agrees(candidate, shape[0], module, NORM_MAGNITUDES):
            return candidate
    return None


def _fuse_mlp(module: nn.Module, library: ctypes.CDLL) -> Replacement | None:
    """Replace a gated MLP."""
    linears = first_linears(module, MLP_LINEARS)
    if linears is None:
        return None
    for activation in activations_of(module):
        candidate = FusedMLP(module, library, linears, activation)
        if agrees(candidate, linears[0].in_features, module):
            return candidate
    return None


def _fuse_mixture(module: nn.Module, library: ctypes.CDLL) -> Replacement | None:
    """Replace a block of experts that are chosen by the softmax of a router's logits."""
    parts = find_parts(module)
    if parts is None:
        return None
    hidden = parts.router.get_parameter("weight").shape[1]
    routing = None
    with no_error():
        routing = watch_router(parts.router, 0.01 * random_rows(CHECK_TOKENS, hidden))
    if routing is None:
        return None
    candidate = FusedMixture(module, library, parts, routing)

    def compute(rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = module(rows[None])[0]
        return result

    return candidate if agrees(candidate, hidden, compute) else None


def _fuse_attention(
    module: nn.Module,
    library: ctypes.CDLL,
    switch_attention: SwitchAttention,
    angle_widths: Sequence[int],
) -> Replacement | None:
    """Replace an attention module with rotary positions in halves, or with none."""
    linears = first_linears(module, ATTENTION_LINEARS)
    head_dim = getattr(module, "head_dim", None)
    if linears is None or not isinstance(head_dim, int) or "layer_idx" not in module.__dict__:
        return None
    recorder = _Recorder()

    def attend(hidden: torch.Tensor, width: int, seed: int = 0) -> torch.Tensor:
        angles = random_rows(CHECK_TOKENS, width, seed=seed)[None]
        arguments: dict[str, Any] = {
            "hidden_states": hidden[None],
            "position_embeddings": (angles.cos(), angles.sin()),
            "attention_mask": None,
        }
        with switch_attention(recorder):
            result: torch.Tensor = module(**arguments)[0]
        return result

    sample = random_rows(CHECK_TOKENS, linears[0].in_features)
    widths = [w for w in angle_widths or [head_dim] if runs(partial(attend, sample, w))]
    if not widths or recorder.options is None:
        return None
    turns = not torch.equal(attend(sample, widths[0]), attend(sample, widths[0], seed=1))
    shape = AttentionShape(head_dim, _head_widths(linears), turns, recorder.options)
    candidate = FusedAttention(module, library, linears, shape)
    fits = all(agrees(candidate, sample.shape[1], partial(attend, width=width)) for width in widths)
    return candidate if fits else None


def _head_widths(linears: list[AnyLinear]) -> tuple[int, int, int]:
    """Return the widths of all query, key and value heads."""
    if len(linears) == 4:
        query, key, value, _ = (linear.out_features for linear in linears)
        return query, key, value
    both, out = linears
    rest = (both.out_features - out.in_features) // 2
    return out.in_features, rest, rest


class _Recorder:
    """A `StepAttention` whose answer depends on all it is given, and which notes the options."""

    def __init__(self) -> None:
        self.options: AttentionOptions | None = None

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `StepAttention.attend`."""
        self.options = options
        group = query.shape[1] // key.shape[1]
        shape = (*query.shape[:2], value.shape[2])
        weight = (query * key.repeat_interleave(group, dim=1)).sum(-1, keepdim=True)
        return (weight * value.repeat_interleave(group, dim=1)).reshape(shape)
