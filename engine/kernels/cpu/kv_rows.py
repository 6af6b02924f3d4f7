"""Rows of the paged cache as the kernels read and write them; see kv_rows.h.

Engine thread only. In plain torch the same is `engine.cache.row_formats`.
"""

import ctypes

import numpy as np
import torch

# The numbers of kv_rows.h.
KV_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}


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
            KV_FORMATS[cached.dtype],
        ),
        dtype=np.int64,
    )  # fmt: skip
    library.store_kv_rows(x.data_ptr(), cached.data_ptr(), slots.data_ptr(), sizes.ctypes.data)
