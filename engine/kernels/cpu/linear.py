"""The packed linear layer: fp32 weights in panels, any number of rows.

Engine thread, on torch's own thread team. See linear.cpp for the layout and for why a row's result
does not depend on the batch it is in.
"""

import ctypes
from dataclasses import dataclass

import torch

from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.panel_memory import panel_memory
from engine.kernels.operators import define_operator

PANEL = 32
FLOAT32 = -1  # the format's number in linear.h


class LinearStructure(ctypes.Structure):
    """A packed linear layer as linear.h has it: eight bytes a field."""

    _fields_ = (
        ("format", ctypes.c_int64), ("panels", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        ("columns", ctypes.c_int64), ("depth", ctypes.c_int64),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinearView:
    """A packed linear layer as other kernels see it.

    Attributes:
        format: FLOAT32, or the number of a quantised one.
        panels: The packed weight.
        bias: [N] fp32 or None.
        columns: N.
        depth: K.
    """

    format: int
    panels: torch.Tensor
    bias: torch.Tensor | None
    columns: int
    depth: int

    def structure(self) -> LinearStructure:
        """Return what the kernels read; it points into the tensors."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return LinearStructure(self.format, self.panels.data_ptr(), bias, self.columns, self.depth)


class PackedLinear:
    """y = x W^T + b over packed weights."""

    def __init__(
        self, library: ctypes.CDLL, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Pack a weight.

        Args:
            library: The kernels.
            weight: [N, K] fp32 on the CPU; copied.
            bias: [N] fp32 or None.
        """
        self._library = library
        self._bias = None if bias is None else bias.detach().contiguous()
        self._columns, depth = weight.shape
        panels = -(-self._columns // PANEL)
        self._panels = panel_memory().empty(panels, depth, PANEL, dtype=torch.float32)
        source = weight.detach().contiguous()
        library.pack_linear(source.data_ptr(), self._panels.data_ptr(), self._columns, depth)

    @property
    def view(self) -> LinearView:
        """The layer as other kernels see it."""
        return LinearView(FLOAT32, self._panels, self._bias, self._columns, self._panels.shape[1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., N] for x [..., K], both fp32."""
        if torch.compiler.is_dynamo_compiling():
            return _packed_linear(x, self._panels, self._bias, self._columns)
        return packed_linear(self._library, x, self._panels, self._bias, self._columns)


def packed_linear(
    library: ctypes.CDLL,
    x: torch.Tensor,
    panels: torch.Tensor,
    bias: torch.Tensor | None,
    columns: int,
) -> torch.Tensor:
    """Return x W^T + b.

    Args:
        library: The kernels.
        x: [..., K] fp32.
        panels: [ceil(N / PANEL), K, PANEL], the packed weight.
        bias: [N] fp32 or None.
        columns: N.

    Returns:
        [..., N] fp32.
    """
    depth = panels.shape[1]
    rows = x.reshape(-1, depth)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    num_rows = rows.shape[0]
    if num_rows == 0:
        return x.new_empty(*x.shape[:-1], columns)
    y = torch.empty(*x.shape[:-1], columns)
    workspace = torch.empty(num_rows * (depth + PANEL))
    library.packed_linear(
        rows.data_ptr(),
        rows.stride(0),
        panels.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        num_rows,
        columns,
        depth,
        workspace.data_ptr(),
        torch.get_num_threads(),
    )
    return y


_packed_linear = define_operator(
    "packed_linear(Tensor x, Tensor panels, Tensor? bias, int columns) -> Tensor",
    lambda x, panels, bias, columns: packed_linear(kernels(), x, panels, bias, columns),
    lambda x, panels, bias, columns: x.new_empty(*x.shape[:-1], columns),
)
