"""Rows of the paged cache as the kernels read and write them; see kv_rows.h.

Engine thread only. In plain torch the same is `engine.cache.row_formats`.
"""

import ctypes

import numpy as np
import torch

# The numbers of kv_rows.h.
KV_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}


class CachedRowsStructure(ctypes.Structure):
    """CachedRows of kv_rows.h."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("block_bytes", ctypes.c_int64),
        ("head_bytes", ctypes.c_int64),
    )


def distances(cached: torch.Tensor) -> tuple[int, int]:
    """Return the bytes from block to block and from head to head of blocks.

    Args:
        cached: [blocks, page_size, Hkv, W], in memory the positions of a head one after another.
    """
    assert (cached.stride(1), cached.stride(3)) == (cached.shape[3], 1)
    return cached.stride(0) * cached.itemsize, cached.stride(2) * cached.itemsize


def describe_rows(cached: torch.Tensor) -> CachedRowsStructure:
    """Return what the kernels need to know of such blocks."""
    return CachedRowsStructure(cached.data_ptr(), *distances(cached))


def store_kv_rows(
    library: ctypes.CDLL, x: torch.Tensor, cached: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store a layer's keys, or values, of a step's tokens.

    Args:
        library: The kernels.
        x: [T, Hkv, D] fp32, each head's numbers next to each other.
        cached: [blocks, page_size, Hkv, W] rows; in memory heads come before positions.
        slots: [T] int64.
    """
    if x.stride(2) != 1:
        x = x.contiguous()
    num_tokens, num_heads, width = x.shape
    sizes = np.array(
        (
            num_tokens, num_heads, width, cached.shape[1], x.stride(0), x.stride(1),
            KV_FORMATS[cached.dtype], *distances(cached),
        ),
        dtype=np.int64,
    )  # fmt: skip
    library.store_kv_rows(x.data_ptr(), cached.data_ptr(), slots.data_ptr(), sizes.ctypes.data)
