"""A faster forward for one module, in place for the length of a model's forward.

Owned by `CausalLM`. The module keeps its weights and its own forward; a replacement is built from
the weights, and built again when they were changed in place or replaced. A change that goes through
`weight.data` leaves no trace on the weight and is not seen. Packed weights count as weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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
        self._built_from: list[_Trace] | None = None
        self._forward: Forward | None = None

    @abstractmethod
    def build(self) -> Forward:
        """Return the forward for the weights as they are."""

    def refresh(self) -> Forward | None:
        """Return the forward for the weights as they are; None if they are of another kind."""
        if self._built_from is None or not _are_as_they_were(self._built_from):
            self._forward = self.build() if all(map(is_plain_module, self.sources)) else None
            # Afterwards: packed weights that are fused become parts of one tensor.
            self._built_from = [trace for module in self.sources for trace in _traces(module)]
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
    return all(
        trace.tensor is None
        or (trace.tensor.device.type == "cpu" and trace.tensor.dtype in _PLAIN_DTYPES)
        for trace in _traces(module)
    )


_PLAIN_DTYPES = (torch.float32, torch.uint8)


class _Trace(NamedTuple):
    """What a parameter was like; a change in place, a replacement or new storage shows.

    Attributes:
        owner: The module's dictionary that it stands in: torch's own __getattr__ takes a
            microsecond a parameter, and each step looks at all of a model.
        name: Its name there.
        tensor: The parameter, or None if there was none.
        address: Where its values lie.
        version: How often it was changed in place. An inference tensor has no version and cannot be
            changed outside inference mode.
        values: Held, so that no later parameter can lie where this one lay and pass for it.
    """

    owner: Mapping[str, torch.Tensor | None]
    name: str
    tensor: torch.Tensor | None
    address: int = 0
    version: int | None = None
    values: torch.Tensor | None = None


def _traces(module: nn.Module) -> Iterator[_Trace]:
    """Yield the traces of a module's own parameters, packed weights included."""
    places: list[tuple[Mapping[str, torch.Tensor | None], str]] = [
        *((module._parameters, name) for name in module._parameters),
        (module._buffers, "panels"),
    ]
    for owner, name in places:
        tensor = owner.get(name)
        if tensor is None:
            yield _Trace(owner, name, None)
            continue
        version = None if tensor.is_inference() else tensor._version
        yield _Trace(owner, name, tensor, tensor.data_ptr(), version, tensor.data)


def _are_as_they_were(traces: Sequence[_Trace]) -> bool:
    for owner, name, tensor, address, version, _ in traces:
        if owner.get(name) is not tensor:
            return False
        if tensor is not None and (
            tensor.data_ptr() != address or (version is not None and tensor._version != version)
        ):
            return False
    return True
