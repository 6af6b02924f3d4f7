"""Puts packed linear layers in place of a model's own, for the length of a forward.

Owned by `CausalLM`. The model keeps its modules and weights; between forwards it is as it was, and
weights that are changed in place are packed again before the next one.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from engine.cache.sizing import available_host_bytes
from engine.kernels.cpu.linear import PackedLinear, load_library, packed_bytes

logger = logging.getLogger(__name__)

# The packed copies may take this share of the free memory; a model too large for that keeps its
# own matrix products and leaves the memory to the cache.
MAX_MEMORY_SHARE = 0.25


class PackedLinears:
    """The packed counterparts of a model's linear layers."""

    def __init__(self, model: nn.Module) -> None:
        """Pack every fp32 linear layer on the CPU, if there are kernels and memory for it."""
        self._layers: list[tuple[nn.Module, PackedLinear]] = []
        found = [module for module in model.modules() if type(module) is nn.Linear]
        found = [module for module in found if _can_pack(module.weight)]
        needed = sum(packed_bytes(module.weight) for module in found)
        library = load_library() if found else None
        if library is None:
            return
        if needed > MAX_MEMORY_SHARE * available_host_bytes():
            logger.warning("packing the weights would take %.1f GiB: not done", needed / 2**30)
            return
        for module in found:
            self._layers.append((module, PackedLinear(library, module.weight, module.bias)))

    def __len__(self) -> int:
        """Return how many layers are packed."""
        return len(self._layers)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the packed layers compute instead of the model's own."""
        for module, packed in self._layers:
            packed.refresh()
            # An attribute of the instance goes before the method of the class.
            module.__dict__["forward"] = packed
        try:
            yield
        finally:
            for module, _ in self._layers:
                module.__dict__.pop("forward", None)


def _can_pack(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
