"""Finds modules whose forward our kernels can compute in fewer, faster calls.

Runs once, when a model is taken over. Modules are recognised by structure, not by class, and every
single one is checked: a replacement that does not give what the module's own forward gives on
random inputs is left out, and the module stays as it is.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from engine.attention.interface import AttentionOptions, StepAttention
from engine.cache.sizing import available_host_bytes
from engine.kernels.cpu.library import load_library
from engine.kernels.cpu.rows import Activation
from engine.models.fused_layers import (
    AttentionShape,
    FusedAttention,
    FusedMLP,
    FusedNorm,
    SingleLinear,
)
from engine.models.joined_linears import AnyLinear
from engine.models.quantized_modules import QuantizedLinear
from engine.models.replacement import Replacement, is_plain_module
from engine.models.rotary_operator import rotary_modules
from engine.models.tolerance import tolerance_of

logger = logging.getLogger(__name__)

SwitchAttention = Callable[[StepAttention], AbstractContextManager[None]]

# The packed copies may take this share of the free memory; a model too large for that keeps its
# own matrix products and leaves the memory to the cache.
MAX_MEMORY_SHARE = 0.25
# What modules call their linear layers: separate, or joined as they are stored.
ATTENTION_LINEARS = (("q_proj", "k_proj", "v_proj", "o_proj"), ("qkv_proj", "o_proj"))
MLP_LINEARS = (("gate_proj", "up_proj", "down_proj"), ("gate_up_proj", "down_proj"))
# What MLPs call their activation, and ours as torch computes them.
ACTIVATIONS = ("act_fn", "activation_fn", "act")
TORCH_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
}
CHECK_TOKENS = 5
# Inputs of the size that is usual after a norm, and so large that whatever limits values shows.
CHECK_MAGNITUDES = (1.0, 100.0)


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
    needed = sum(linear.weight.numel() * linear.weight.element_size() for linear in linears)
    if needed > MAX_MEMORY_SHARE * available_host_bytes():
        logger.warning("packing the weights would take %.1f GiB: not done", needed / 2**30)
        return []
    fused: list[Replacement] = []
    angle_widths = sorted({w for _, widths in rotary_modules(model) for w in widths.values()})
    with torch.inference_mode():
        for module in model.modules():
            found = (
                _fuse_norm(module, library)
                or _fuse_mlp(module, library)
                or _fuse_attention(module, library, switch_attention, angle_widths)
            )
            if found is not None:
                fused.append(found)
    covered = {id(source) for replacement in fused for source in replacement.sources}
    rest = [SingleLinear(linear, library) for linear in linears if id(linear) not in covered]
    return [*fused, *rest]


def _fuse_norm(module: nn.Module, library: ctypes.CDLL) -> Replacement | None:
    """Replace a root-mean-square norm over its last dimension."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = module._parameters.get("weight")
    if not isinstance(epsilon, float) or weight is None or weight.dim() != 1:
        return None
    if len(module._parameters) != 1 or not is_plain_module(module):
        return None
    for gain in (0.0, 1.0):
        candidate = FusedNorm(module, library, epsilon, gain)
        if _agrees(candidate, weight.shape[0], module):
            return candidate
    return None


def _fuse_mlp(module: nn.Module, library: ctypes.CDLL) -> Replacement | None:
    """Replace a gated MLP."""
    linears = _first_linears(module, MLP_LINEARS)
    if linears is None:
        return None
    for activation in _activations(module):
        candidate = FusedMLP(module, library, linears, activation)
        if _agrees(candidate, linears[0].in_features, module):
            return candidate
    return None


def _activations(module: nn.Module) -> list[Activation]:
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


def _fuse_attention(
    module: nn.Module,
    library: ctypes.CDLL,
    switch_attention: SwitchAttention,
    angle_widths: Sequence[int],
) -> Replacement | None:
    """Replace an attention module with rotary positions in halves, or with none."""
    linears = _first_linears(module, ATTENTION_LINEARS)
    head_dim = getattr(module, "head_dim", None)
    if linears is None or not isinstance(head_dim, int) or "layer_idx" not in module.__dict__:
        return None
    recorder = _Recorder()

    def attend(hidden: torch.Tensor, width: int, seed: int = 0) -> torch.Tensor:
        angles = _random(CHECK_TOKENS, width, seed=seed)[None]
        arguments: dict[str, Any] = {
            "hidden_states": hidden[None],
            "position_embeddings": (angles.cos(), angles.sin()),
            "attention_mask": None,
        }
        with switch_attention(recorder):
            result: torch.Tensor = module(**arguments)[0]
        return result

    sample = _random(CHECK_TOKENS, linears[0].in_features)
    widths = [w for w in angle_widths or [head_dim] if _runs(partial(attend, sample, w))]
    if not widths or recorder.options is None:
        return None
    turns = not torch.equal(attend(sample, widths[0]), attend(sample, widths[0], seed=1))
    shape = AttentionShape(head_dim, _head_widths(linears), turns, recorder.options)
    candidate = FusedAttention(module, library, linears, shape)
    fits = all(
        _agrees(candidate, sample.shape[1], partial(attend, width=width)) for width in widths
    )
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


class _Outcome:
    """Whether the code of a with block raised."""

    failed = False


@contextmanager
def _no_error() -> Iterator[_Outcome]:
    """Swallow what a module's forward raises on arguments it was not made for."""
    outcome = _Outcome()
    try:
        yield outcome
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        outcome.failed = True


def _runs(compute: Callable[[], torch.Tensor]) -> bool:
    """Return whether a computation takes its arguments."""
    with _no_error() as outcome:
        compute()
    return not outcome.failed


def _agrees(
    candidate: Replacement, num_inputs: int, compute: Callable[[torch.Tensor], torch.Tensor]
) -> bool:
    """Return whether a computation on [T, num_inputs] is the same with the replacement."""
    sample = _random(CHECK_TOKENS, num_inputs)
    return all(_agrees_on(candidate, sample * magnitude, compute) for magnitude in CHECK_MAGNITUDES)


def _agrees_on(
    candidate: Replacement, sample: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]
) -> bool:
    with _no_error():
        own = compute(sample)
        try:
            candidate.put_in_place()
            ours = compute(sample)
        finally:
            candidate.take_away()
        if own.shape == ours.shape:
            scale = max(1.0, float(own.abs().max()))
            return bool((own - ours).abs().max() <= tolerance_of(candidate.module) * scale)
    return False


def _first_linears(module: nn.Module, choices: Sequence[tuple[str, ...]]) -> list[AnyLinear] | None:
    """Return a module's linear layers of the first of these names that it has."""
    return next(filter(None, (_linears(module, names) for names in choices)), None)


def _linears(module: nn.Module, names: tuple[str, ...]) -> list[AnyLinear] | None:
    """Return a module's linear layers of these names, if it has them all, plain ones."""
    found = [module._modules.get(name) for name in names]
    linears: list[AnyLinear] = [
        module
        for module in found
        if (type(module) is nn.Linear or isinstance(module, QuantizedLinear))
        and is_plain_module(module)
    ]
    return linears if len(linears) == len(names) else None


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return the same random numbers each time, drawn from no one's generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
