"""The packed linear layer: fp32 weights in panels, any number of rows.

Engine thread, on torch's own thread team. See linear.cpp for the layout and for why a row's result
does not depend on the batch it is in.
"""

import ctypes
import functools
from pathlib import Path

import torch

from engine.kernels.cpu.build import build, instruction_set

PANEL = 32


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None where there are none."""
    path = build(instruction_set())
    return None if path is None else open_library(path)


def open_library(path: Path) -> ctypes.CDLL:
    """Load compiled kernels and say what their functions take."""
    library = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.pack_linear.argtypes = [pointer, pointer, integer, integer]
    library.pack_linear.restype = None
    library.packed_linear.argtypes = [
        pointer, integer, pointer, pointer, pointer, integer, integer, integer, pointer, integer,
    ]  # fmt: skip
    library.packed_linear.restype = None
    return library


def packed_bytes(weight: torch.Tensor) -> int:
    """Return the bytes that a weight [N, K] takes when packed."""
    columns, depth = weight.shape
    return -(-columns // PANEL) * PANEL * depth * weight.element_size()


class PackedLinear:
    """y = x W^T + b over packed weights; follows its weight when that is changed in place."""

    def __init__(
        self, library: ctypes.CDLL, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Pack a weight.

        Args:
            library: From `load_library`.
            weight: [N, K] fp32 on the CPU; kept, and looked at for changes.
            bias: [N] fp32 or None.
        """
        self._library = library
        self._weight = weight
        self._bias = None if bias is None else bias.detach().contiguous()
        self._columns, self._depth = weight.shape
        self._panels = torch.empty(-(-self._columns // PANEL), self._depth, PANEL)
        self._packed_version: tuple[int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Pack again if the weight has changed since."""
        weight = self._weight
        # An inference tensor has no version and cannot be changed outside inference mode.
        version = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        if version == self._packed_version:
            return
        source = weight.detach().contiguous()
        self._library.pack_linear(
            source.data_ptr(), self._panels.data_ptr(), self._columns, self._depth
        )
        self._packed_version = version

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., N] for x [..., K], both fp32."""
        rows = x.reshape(-1, self._depth)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        num_rows = rows.shape[0]
        if num_rows == 0:
            return x.new_empty(*x.shape[:-1], self._columns)
        y = torch.empty(*x.shape[:-1], self._columns)
        threads = torch.get_num_threads()
        workspace = torch.empty(num_rows * (self._depth + PANEL))
        self._library.packed_linear(
            rows.data_ptr(),
            rows.stride(0),
            self._panels.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            y.data_ptr(),
            num_rows,
            self._columns,
            self._depth,
            workspace.data_ptr(),
            threads,
        )
        return y
