"""Linear layers over weights of 16, 8 or 4 bits, packed once; fp32 activations, any number of rows.

Engine thread, on torch's own thread team. See quantized_linear.cpp for what a stored weight means.
A result is bitwise that of `PackedLinear` on the unpacked weights, but for the formats of the tile
unit, which take activations as the sum of two bf16 numbers, for INT8 and INT4 where the processor
has dot products of bytes (wide_linear.cpp), and for W8A8 and W4A8, which round activations to 8
bits.
"""

import ctypes
import enum

import torch

from engine.kernels.cpu.library import kernels
from engine.kernels.cpu.linear import PANEL
from engine.kernels.cpu.panel_memory import MAX_SHARED_BYTES, panel_memory
from engine.kernels.operators import define_operator

GROUP = 32


class Format(enum.IntEnum):
    """How weights are stored: the numbers of quantized_linear.cpp, amx.h and integer.h."""

    BF16 = 0
    INT8_ROWS = 1
    INT8 = 2
    INT4 = 3
    # For the tile unit of newer x86 processors; see amx_linear.cpp.
    AMX_BF16 = 16
    AMX_BF16X3 = 17
    # INT8 and INT4 for activations of 8 bits; see integer_linear.cpp.
    W8A8 = 32
    W4A8 = 33


class QuantizedWeight:
    """The packed weight of a linear layer or an embedding.

    Attributes:
        format: How it is stored.
        panels: [ceil(N / 32), bytes of a panel] uint8 on the CPU.
        shape: (N, K), outputs and inputs.
    """

    def __init__(
        self,
        kind: Format,
        panels: torch.Tensor,
        shape: tuple[int, int],
        library: ctypes.CDLL | None = None,
    ) -> None:
        """Take panels that are packed already; `pack_bf16` and its like make them.

        Args:
            kind: How they are stored.
            panels: The packed weight.
            shape: (N, K).
            library: The kernels; None takes those for this processor.
        """
        self.format = kind
        self.panels = panels
        self.shape = shape
        # A plain number, for operators of torch.
        self._number = int(kind)
        self._library = library

    @property
    def library(self) -> ctypes.CDLL:
        """The kernels that compute with it."""
        return kernels() if self._library is None else self._library

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x W^T + bias: [..., N] for x [..., K]; all fp32, the bias contiguous [N]."""
        if torch.compiler.is_dynamo_compiling():
            return _quantized_linear(x, self.panels, bias, self._number, *self.shape)
        return quantized_linear(self, x, bias)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the weights of some outputs: [..., K] fp32 for int64 indices [...].

        Raises:
            IndexError: An index lies outside [0, N).
        """
        if torch.compiler.is_dynamo_compiling():
            return _unpack_rows(indices, self.panels, self._number, *self.shape)
        return unpack_rows(self, indices)


def quantized_linear(
    weight: QuantizedWeight, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See `QuantizedWeight.linear`."""
    columns, depth = weight.shape
    rows = x.reshape(-1, depth)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    num_rows = rows.shape[0]
    y = torch.empty(*x.shape[:-1], columns)
    if num_rows == 0:
        return y
    workspace = torch.empty(weight.library.quantized_workspace(weight.format, num_rows, depth))
    sizes = (weight.format, num_rows, columns, depth, torch.get_num_threads())
    weight.library.quantized_linear(
        rows.data_ptr(),
        rows.stride(0),
        weight.panels.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        workspace.data_ptr(),
        (ctypes.c_int64 * 5)(*sizes),
    )
    return y


def unpack_rows(weight: QuantizedWeight, indices: torch.Tensor) -> torch.Tensor:
    """See `QuantizedWeight.rows`."""
    columns, depth = weight.shape
    flat = indices.reshape(-1).contiguous()
    if ((flat < 0) | (flat >= columns)).any():
        raise IndexError(f"an index lies outside of {columns} rows")
    out = torch.empty(flat.numel(), depth)
    weight.library.unpack_rows(
        weight.format,
        weight.panels.data_ptr(),
        depth,
        flat.data_ptr(),
        out.data_ptr(),
        flat.numel(),
        torch.get_num_threads(),
    )
    return out.view(*indices.shape, depth)


def pack_bf16(library: ctypes.CDLL, weight: torch.Tensor) -> QuantizedWeight:
    """Pack a weight [N, K] bfloat16."""
    packed = _empty(library, Format.BF16, weight)
    source = weight.detach().contiguous()
    library.pack_bf16(source.data_ptr(), packed.panels.data_ptr(), *packed.shape)
    return packed


def pack_int8(
    library: ctypes.CDLL, kind: Format, codes: torch.Tensor, scales: torch.Tensor
) -> QuantizedWeight:
    """Pack weights scale * code.

    Args:
        library: The kernels.
        kind: INT8_ROWS, INT8 or W8A8.
        codes: [N, K] int8.
        scales: [N] float32 for INT8_ROWS, else [N, ceil(K / 32)] float16.
    """
    packed = _empty(library, kind, codes)
    _check(scales, packed.shape, torch.float32 if kind is Format.INT8_ROWS else torch.float16)
    codes, scales = codes.contiguous(), scales.contiguous()
    pack = {
        Format.INT8_ROWS: library.pack_int8_rows,
        Format.INT8: library.pack_int8,
        Format.W8A8: library.pack_w8a8,
    }[kind]
    pack(codes.data_ptr(), scales.data_ptr(), packed.panels.data_ptr(), *packed.shape)
    return packed


def pack_int4(
    library: ctypes.CDLL,
    kind: Format,
    codes: torch.Tensor,
    scales: torch.Tensor,
    minima: torch.Tensor,
) -> QuantizedWeight:
    """Pack weights scale * code + minimum.

    Args:
        library: The kernels.
        kind: INT4 or W4A8.
        codes: [N, K] uint8 in 0 .. 15.
        scales: [N, ceil(K / 32)] float16.
        minima: Like the scales.
    """
    packed = _empty(library, kind, codes)
    for numbers in (scales, minima):
        _check(numbers, packed.shape, torch.float16)
    codes, scales, minima = codes.contiguous(), scales.contiguous(), minima.contiguous()
    pack = library.pack_int4 if kind is Format.INT4 else library.pack_w4a8
    pack(
        codes.data_ptr(),
        scales.data_ptr(),
        minima.data_ptr(),
        packed.panels.data_ptr(),
        *packed.shape,
    )
    return packed


def panel_layout(library: ctypes.CDLL, kind: Format) -> int:
    """Return a number for how the panels of a format lie, where that depends on the processor."""
    return library.use_wide_products(-1) if kind in (Format.INT8, Format.INT4) else 0


def has_tile_unit(library: ctypes.CDLL) -> bool:
    """Return whether the AMX formats can be computed with in this process."""
    return bool(library.has_amx())


def pack_amx_bf16(library: ctypes.CDLL, kind: Format, weight: torch.Tensor) -> QuantizedWeight:
    """Pack a weight [N, K] float32 as AMX_BF16 or AMX_BF16X3."""
    packed = _empty(library, kind, weight)
    source = weight.detach().contiguous()
    library.amx_pack_bf16(kind, source.data_ptr(), packed.panels.data_ptr(), *packed.shape)
    return packed


def _empty(library: ctypes.CDLL, kind: Format, like: torch.Tensor) -> QuantizedWeight:
    columns, depth = like.shape
    panel_bytes = library.quantized_panel_bytes(kind, depth)
    shape = (-(-columns // PANEL), panel_bytes)
    # Layers get a place beside the others when they are joined; a head stays where it is.
    if shape[0] * panel_bytes > MAX_SHARED_BYTES:
        panels = panel_memory().empty(*shape, dtype=torch.uint8)
    else:
        panels = torch.empty(shape, dtype=torch.uint8)
    return QuantizedWeight(kind, panels, (columns, depth), library)


def _check(numbers: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """The kernels trust their pointers."""
    columns, depth = shape
    expected = (columns,) if numbers.dim() == 1 else (columns, -(-depth // GROUP))
    assert tuple(numbers.shape) == expected, f"{tuple(numbers.shape)} instead of {expected}"
    assert numbers.dtype == dtype, f"{numbers.dtype} instead of {dtype}"


_quantized_linear = define_operator(
    "quantized_linear(Tensor x, Tensor panels, Tensor? bias, int kind, int columns, int depth)"
    " -> Tensor",
    lambda x, panels, bias, kind, columns, depth: quantized_linear(
        QuantizedWeight(Format(kind), panels, (columns, depth)), x, bias
    ),
    lambda x, panels, bias, kind, columns, depth: x.new_empty(*x.shape[:-1], columns),
)
_unpack_rows = define_operator(
    "unpack_rows(Tensor indices, Tensor panels, int kind, int columns, int depth) -> Tensor",
    lambda indices, panels, kind, columns, depth: unpack_rows(
        QuantizedWeight(Format(kind), panels, (columns, depth)), indices
    ),
    lambda indices, panels, kind, columns, depth: panels.new_empty(
        *indices.shape, depth, dtype=torch.float32
    ),
)
