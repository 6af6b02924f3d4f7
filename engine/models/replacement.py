"""A faster forward for one module, in place for the length of a model's forward.

Owned by `CausalLM`. The module keeps its weights and its own forward; a replacement is built from
the weights, and built again when they were changed in place or replaced. A change that goes through
`weight.data` leaves no trace on the weight and is not seen. Packed weights count as weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

Forward = Callable[..., Any]


class Replacement(ABC):
    """Computes what a module computes.

    Attributes:
        module: The module whose forward is replaced.
        sources: The modules whose parameters it is built from.
    """

    def __init__(self, module: nn.Module, sources: Sequence[nn.Module]) -> None:
        """Note what is replaced; `build` is called when it is first put in place."""
        self.module = module
        self.sources = list(sources)
        self._built_from: tuple[object, ...] | None = None
        self._forward: Forward | None = None
        # Held, so that no later parameter can lie where one of these lay and pass for it.
        self._held: list[torch.Tensor] = []

    @abstractmethod
    def build(self) -> Forward:
        """Return the forward for the weights as they are."""

    def refresh(self) -> Forward | None:
        """Return the forward for the weights as they are; None if they are of another kind."""
        state = _state(self.sources)
        if state != self._built_from:
            self._forward = self.build() if all(map(_is_plain, _parameters(self.sources))) else None
            # Looked at again: packed weights that are fused become parts of one tensor.
            self._built_from = _state(self.sources)
            self._held = [parameter.data for parameter in _parameters(self.sources)]
        return self._forward

    def put_in_place(self) -> None:
        """Let the replacement compute, unless the weights have become of another kind."""
        forward = self.refresh()
        if forward is not None:
            # An attribute of the instance goes before the method of the class.
            self.module.__dict__["forward"] = forward

    def take_away(self) -> None:
        """Let the module's own forward compute again."""
        self.module.__dict__.pop("forward", None)


@contextmanager
def in_place(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Let all replacements compute inside a with block."""
    try:
        for replacement in replacements:
            replacement.put_in_place()
        yield
    finally:
        for replacement in replacements:
            replacement.take_away()


def is_plain_module(module: nn.Module) -> bool:
    """Return whether all parameters of a module are fp32 or packed, on the CPU."""
    return all(map(_is_plain, _parameters([module])))


def _parameters(modules: Sequence[nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules:
        # Straight from the dictionary: torch's own __getattr__ costs a microsecond a parameter.
        for parameter in (*module._parameters.values(), module._buffers.get("panels")):
            if parameter is not None:
                yield parameter


def _is_plain(parameter: torch.Tensor) -> bool:
    return parameter.device.type == "cpu" and parameter.dtype in (torch.float32, torch.uint8)


def _state(modules: Sequence[nn.Module]) -> tuple[object, ...]:
    """Return what changes when a parameter is replaced or changed in place."""
    return tuple(
        # An inference tensor has no version and cannot be changed outside inference mode.
        (id(parameter), parameter.data_ptr(), 0 if parameter.is_inference() else parameter._version)
        for parameter in _parameters(modules)
    )
