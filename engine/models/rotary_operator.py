"""Rotary tables as an operator that the compiler does not look into: the module's own forward.

For compiled forwards only. A compiler writes sines and cosines of its own, which differ in the last
bit from one graph to the next, and so would a request's numbers with the batch it is in. And some
modules change their frequencies with the length of what they see, which cannot be compiled.
"""

import inspect
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn

from engine.kernels.operators import ANY_DEVICE, define_operator
from engine.models.replacement import Forward, Replacement

_NUMBERS = itertools.count()
_KNOWN: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()


class OpaqueRotary(Replacement):
    """Calls a module's own forward, as an operator."""

    def __init__(self, module: nn.Module, widths: dict[str | None, int]) -> None:
        """Take a number for the module.

        Args:
            module: Takes hidden states and positions [1, T], and may be the type of a layer.
            widths: Type of layer, or None where it takes none -> last dimension of the result.
        """
        super().__init__(module, [])
        self._widths = widths
        self._number = next(_NUMBERS)
        _KNOWN[self._number] = module

    def build(self) -> Forward:
        """See `Replacement.build`."""
        number, widths = self._number, self._widths

        def forward(
            x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            tables: Any = _rotary(x, position_ids, number, layer_type, widths[layer_type])
            return cast(tuple[torch.Tensor, torch.Tensor], tables)

        return forward


def find_rotary(model: nn.Module) -> list[Replacement]:
    """Return replacements for the modules that make rotary tables as transformers' do."""
    return [OpaqueRotary(module, widths) for module, widths in rotary_modules(model)]


def rotary_modules(model: nn.Module) -> Iterator[tuple[nn.Module, dict[str | None, int]]]:
    """Yield the modules that make rotary tables as transformers' do.

    With each comes how wide its tables are by type of layer, or under None where it takes none.
    """
    for module in model.modules():
        if any(name.endswith("inv_freq") for name in module._buffers):
            parameters = [*inspect.signature(module.forward).parameters][:3]
            types = getattr(module, "layer_types", [None]) if "layer_type" in parameters else [None]
            widths = _widths(module, types)
            if parameters[:2] == ["x", "position_ids"] and widths:
                yield module, widths


def _widths(module: nn.Module, layer_types: Sequence[str | None]) -> dict[str | None, int]:
    """Return how wide a module's tables are for each type of layer; {} if it makes others."""
    buffer = next(iter(module.buffers()))
    x = torch.zeros(1, 2, 1, device=buffer.device)
    positions = torch.arange(2, device=buffer.device)[None]
    widths: dict[str | None, int] = {}
    for layer_type in layer_types:
        try:
            tables = _own_tables(module, x, positions, layer_type)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            continue  # a type of layer without rotation, or a module of another kind
        cosines, sines = tables if isinstance(tables, tuple) and len(tables) == 2 else (None, None)
        if not isinstance(cosines, torch.Tensor) or not isinstance(sines, torch.Tensor):
            return {}
        if cosines.shape[:2] != (1, 2) or cosines.dim() != 3 or cosines.shape != sines.shape:
            return {}
        widths[layer_type] = cosines.shape[2]
    return widths


def _own_tables(
    module: nn.Module, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None
) -> Any:
    types = () if layer_type is None else (layer_type,)
    with torch.inference_mode():
        return type(module).forward(module, x, position_ids, *types)


def _compute(
    x: torch.Tensor, position_ids: torch.Tensor, number: int, layer_type: str | None, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    cosines, sines = _own_tables(_KNOWN[number], x, position_ids, layer_type)
    # Copies: what a module keeps must not be taken for a buffer that may be written over.
    return cosines.clone(), sines.clone()


_rotary = define_operator(
    "rotary(Tensor x, Tensor position_ids, int number, str? layer_type, int width) "
    "-> (Tensor, Tensor)",
    _compute,
    lambda x, position_ids, number, layer_type, width: (
        x.new_empty(*position_ids.shape, width),
        x.new_empty(*position_ids.shape, width),
    ),
    device=ANY_DEVICE,
)
