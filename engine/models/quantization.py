"""What weights of 16, 8 or 4 bits are: how a matrix is rounded to codes, and what codes mean.

Pure. Rounding is to the nearest code, with nothing learned from data.

    BF16         the number itself, rounded to 8 bits of precision
    INT8_ROWS    scale[row] * code                              code -127 .. 127, fp32 scales
    INT8         scale[row, group] * code                       32 of a row are a group, fp16 scales
    INT4         scale[row, group] * code + minimum[row, group] code 0 .. 15
    AMX_BF16     like BF16; AMX_BF16X3 is the sum of two such numbers
    W8A8, W4A8   INT8 and INT4, for activations that are rounded to 8 bits as well
"""

import ctypes
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from engine.kernels.cpu.quantized_linear import (
    GROUP,
    Format,
    QuantizedWeight,
    pack_amx_bf16,
    pack_bf16,
    pack_int4,
    pack_int8,
)

WITH_INT8_ACTIVATIONS = {Format.INT8: Format.W8A8, Format.INT4: Format.W4A8}


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A matrix in one of the formats, not packed yet.

    Attributes:
        format: How it is stored.
        codes: [N, K] bfloat16, int8 or uint8; float32 for AMX_BF16X3.
        scales: [N] float32 or [N, ceil(K / 32)] float16; None for the kinds of bf16.
        minima: [N, ceil(K / 32)] float16; None for all but INT4 and W4A8.
    """

    format: Format
    codes: torch.Tensor
    scales: torch.Tensor | None = None
    minima: torch.Tensor | None = None

    def numbers(self) -> torch.Tensor:
        """Return what the codes mean: [N, K] float32."""
        numbers = self.codes.float()
        if self.scales is not None:
            numbers *= self._along_rows(self.scales)
        if self.minima is not None:
            numbers += self._along_rows(self.minima)
        return numbers

    def select(self, rows: torch.Tensor) -> "StoredWeight":
        """Return the matrix with these rows [M] int64, in this order."""
        parts = (self.codes, self.scales, self.minima)
        return StoredWeight(self.format, *(None if p is None else p[rows] for p in parts))  # type: ignore[arg-type]

    def pack(self, library: ctypes.CDLL) -> QuantizedWeight:
        """Return it as the kernels read it."""
        if self.format in (Format.AMX_BF16, Format.AMX_BF16X3):
            return pack_amx_bf16(library, self.format, self.codes.float())
        if self.scales is None:
            return pack_bf16(library, self.codes)
        if self.minima is None:
            return pack_int8(library, self.format, self.codes, self.scales)
        return pack_int4(library, self.format, self.codes, self.scales, self.minima)

    def for_activations(self, activations: str) -> "StoredWeight":
        """Return the same weights, to be multiplied with activations of "fp32" or "int8"."""
        return replace(self, format=format_for(self.format, activations))

    def _along_rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return one number for each code."""
        if numbers.dim() == 1:
            return numbers[:, None]
        return numbers.float().repeat_interleave(GROUP, dim=1)[:, : self.codes.shape[1]]


def format_for(kind: Format, activations: str) -> Format:
    """Return the format with the same weights for activations of "fp32" or "int8".

    A format that has none for activations of 8 bits is returned as it is.
    """
    return WITH_INT8_ACTIVATIONS.get(kind, kind) if activations == "int8" else kind


def quantize(weight: torch.Tensor, kind: Format) -> StoredWeight:
    """Round a matrix to a format.

    Args:
        weight: [N, K] of any floating dtype.
        kind: The format.

    Raises:
        ValueError: A weight is not a finite number, or too large for a float16 scale.
    """
    weight = weight.detach().float()
    stored = replace(_ROUNDINGS[kind](weight), format=kind)
    for numbers in (stored.scales, stored.minima):
        if numbers is not None and not numbers.isfinite().all():
            raise ValueError(f"weights up to {float(weight.abs().max()):.3g} have no such form")
    if stored.scales is None and not stored.codes.isfinite().all():
        raise ValueError("some weights are not finite numbers")
    return stored


def is_exact(weight: torch.Tensor) -> bool:
    """Return whether bfloat16 holds every number of a matrix as it is."""
    return torch.equal(weight.bfloat16().to(weight.dtype), weight)


def _to_bf16(weight: torch.Tensor) -> StoredWeight:
    return StoredWeight(Format.BF16, weight.bfloat16())


def _to_int8_rows(weight: torch.Tensor) -> StoredWeight:
    scales = weight.abs().amax(dim=1) / 127
    return StoredWeight(Format.INT8_ROWS, _codes(weight / scales[:, None], 127), scales)


def _to_amx_bf16(weight: torch.Tensor) -> StoredWeight:
    return StoredWeight(Format.AMX_BF16, weight.bfloat16())


def _to_amx_bf16x3(weight: torch.Tensor) -> StoredWeight:
    high = weight.bfloat16().float()
    return StoredWeight(Format.AMX_BF16X3, high + (weight - high).bfloat16().float())


def _to_int8(weight: torch.Tensor) -> StoredWeight:
    groups = _groups(weight)
    scales = (groups.abs().amax(dim=2) / 127).half()
    codes = _codes(groups / scales.float()[..., None], 127)
    return StoredWeight(Format.INT8, _ungroup(codes, weight), scales)


def _to_int4(weight: torch.Tensor) -> StoredWeight:
    groups = _groups(weight)
    minima = groups.amin(dim=2).half()
    above = groups - minima.float()[..., None]
    scales = (above.amax(dim=2).clamp(min=0) / 15).half()
    codes = (above / scales.float()[..., None]).nan_to_num(0, 15, 0).round().clamp(0, 15)
    return StoredWeight(Format.INT4, _ungroup(codes.to(torch.uint8), weight), scales, minima)


_ROUNDINGS = {
    Format.BF16: _to_bf16,
    Format.INT8_ROWS: _to_int8_rows,
    Format.INT8: _to_int8,
    Format.INT4: _to_int4,
    Format.AMX_BF16: _to_amx_bf16,
    Format.AMX_BF16X3: _to_amx_bf16x3,
    Format.W8A8: _to_int8,
    Format.W4A8: _to_int4,
}


def _codes(quotients: torch.Tensor, limit: int) -> torch.Tensor:
    """Round quotients to int8; where the scale is 0, so is the code."""
    return quotients.nan_to_num(0, 0, 0).round().clamp(-limit, limit).to(torch.int8)


def _groups(weight: torch.Tensor) -> torch.Tensor:
    """Return [N, groups, 32]; the last group is filled with the last column."""
    rows, depth = weight.shape
    missing = -depth % GROUP
    if missing:
        weight = functional.pad(weight[:, None], (0, missing), mode="replicate")[:, 0]
    return weight.view(rows, -1, GROUP)


def _ungroup(codes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return codes.view(len(like), -1)[:, : like.shape[1]]
