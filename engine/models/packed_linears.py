"""Puts packed linear layers in place of a model's own, for the length of a forward.

Owned by `CausalLM`. The model keeps its modules and weights; between forwards it is as it was, and
weights that are changed in place or replaced are packed again before the next one. A change that
goes through `weight.data` leaves no trace on the weight and is not seen.
"""

import ctypes
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


class _Counterpart:
    """A linear layer and its packed weights."""

    def __init__(self, module: nn.Linear, library: ctypes.CDLL) -> None:
        self.module = module
        self._library = library
        self._packed = self._pack()

    def _pack(self) -> PackedLinear:
        weight, bias = self.module.weight, self.module.bias
        self._weight, self._bias_key = weight, _bias_key(bias)
        return PackedLinear(self._library, weight, bias)

    def put_in_place(self) -> None:
        """Let the packed layer compute, unless the weight has become one that cannot be packed."""
        # Straight from the dictionary: torch's own __getattr__ costs a microsecond a layer.
        parameters = self.module._parameters
        weight = parameters["weight"]
        if weight is None or not _can_pack(weight):
            return
        if weight is not self._weight or _bias_key(parameters["bias"]) != self._bias_key:
            self._packed = self._pack()
        self._packed.refresh()
        # An attribute of the instance goes before the method of the class.
        self.module.__dict__["forward"] = self._packed


class PackedLinears:
    """The packed counterparts of a model's linear layers."""

    def __init__(self, model: nn.Module) -> None:
        """Pack every fp32 linear layer on the CPU, if there are kernels and memory for it."""
        self._layers: list[_Counterpart] = []
        found = [module for module in model.modules() if type(module) is nn.Linear]
        found = [module for module in found if _can_pack(module.weight)]
        needed = sum(packed_bytes(module.weight) for module in found)
        library = load_library() if found else None
        if library is None:
            return
        if needed > MAX_MEMORY_SHARE * available_host_bytes():
            logger.warning("packing the weights would take %.1f GiB: not done", needed / 2**30)
            return
        self._layers = [_Counterpart(module, library) for module in found]

    def __len__(self) -> int:
        """Return how many layers are packed."""
        return len(self._layers)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the packed layers compute instead of the model's own."""
        try:
            for layer in self._layers:
                layer.put_in_place()
            yield
        finally:
            for layer in self._layers:
                layer.module.__dict__.pop("forward", None)


def _can_pack(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


def _bias_key(bias: torch.Tensor | None) -> tuple[int, int] | None:
    """Return what changes when a bias is replaced; in place it is read as it is."""
    return None if bias is None else (id(bias), bias.data_ptr())
