"""The packed linear layer: fp32 weights in panels, any number of rows.

Engine thread, on torch's own thread team. See linear.cpp for the layout and for why a row's result
does not depend on the batch it is in.
"""

import ctypes

import torch

PANEL = 32


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
        self._columns, self._depth = weight.shape
        self._panels = torch.empty(-(-self._columns // PANEL), self._depth, PANEL)
        source = weight.detach().contiguous()
        library.pack_linear(source.data_ptr(), self._panels.data_ptr(), self._columns, self._depth)

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
