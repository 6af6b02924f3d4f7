"""How keys and values are kept: as numbers of some dtype, or as codes of 8 bits with a scale.

Pure. A row is one head's key, or value, at one position. Rows stand by themselves, so that whoever
copies them needs to know nothing but their width:

    fp32, bf16, fp16   D numbers, rounded to the nearest; in fp16 what is too large is the largest
    int8               D codes and a float32 scale in the last four: a number is code * scale

This is what rows mean, in plain torch; the kernels do the same (`kernels/cpu/kv_rows.h`).
"""

import torch

from engine.errors import UnsupportedConfigError

_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}
# What `kv_cache_dtype` may be.
KV_CACHE_DTYPES = ("auto", *_DTYPES)
SCALE_BYTES = 4
LARGEST_CODE = 127.0
LARGEST_FP16 = 65504.0
# Rows of smaller numbers are rows of zeros: what divides by them would not be finite.
SMALLEST_ROW = 1e-30


def choose_rows(wanted: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of the rows for a `kv_cache_dtype`.

    Args:
        wanted: One of `KV_CACHE_DTYPES`.
        dtype: The model's.
        device: The model's.

    Raises:
        UnsupportedConfigError: Rows of this kind cannot be read on this device.
    """
    rows = _DTYPES.get(wanted, dtype)
    if device.type != "cpu" and rows != dtype:
        raise UnsupportedConfigError(
            f"kv_cache_dtype is {wanted!r}, but on {device.type} keys and values are kept in the "
            f"model's own dtype, {dtype_name(dtype)}; leave it at 'auto'",
            field="kv_cache_dtype",
        )
    return rows


def dtype_name(dtype: torch.dtype) -> str:
    """Return what `kv_cache_dtype` calls a dtype, or else torch."""
    return next((name for name, known in _DTYPES.items() if known == dtype), str(dtype))


def row_width(width: int, dtype: torch.dtype) -> int:
    """Return how many elements the row of a head of this width has."""
    return width + SCALE_BYTES if dtype == torch.int8 else width


def head_width(rows: torch.Tensor) -> int:
    """Return how many numbers each of [..., W] rows stands for."""
    return rows.shape[-1] - (SCALE_BYTES if rows.dtype == torch.int8 else 0)


def encode_rows(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the rows of [..., D] numbers of any float dtype: [..., W]."""
    if dtype == torch.float16:
        return numbers.clamp(-LARGEST_FP16, LARGEST_FP16).to(dtype)
    if dtype != torch.int8:
        return numbers.to(dtype)
    numbers = numbers.float()
    largest = numbers.abs().amax(-1, keepdim=True)
    # A row with a number that is not finite has a scale that is not, and codes that are zero.
    is_finite = largest < float("inf")
    inverse = torch.where(is_finite & (largest > SMALLEST_ROW), LARGEST_CODE / largest, 0.0)
    codes = torch.where(is_finite, numbers * inverse, 0.0).round().to(torch.int8)
    scale = torch.where(is_finite, largest / LARGEST_CODE, float("nan"))
    return torch.cat([codes, scale.view(torch.int8)], dim=-1)


def decode_rows(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what [..., W] rows mean, in a float dtype: [..., D]."""
    if rows.dtype != torch.int8:
        return rows.to(dtype)
    width = head_width(rows)
    scale = rows[..., width:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return (rows[..., :width].float() * scale).to(dtype)
