"""Attention by our own kernel: fp32 on a CPU, straight over the block tables, rows of any format.

Engine thread only. Nothing is gathered, no mask is built, heads that share keys read them once. The
arithmetic is checked against `torch_reference`.
"""

import ctypes

import numpy as np
import torch

from engine.attention.interface import AttentionOptions
from engine.batch import BatchInputs
from engine.cache.row_formats import head_width
from engine.kernels.cpu.kv_rows import KV_FORMATS, distances


class CpuBackend:
    """`AttentionBackend` over the compiled kernel.

    Attributes:
        page_size: Positions in a page.
        inputs: The planned step; None before the first.
        query_starts: Its query_starts as an array: [R + 1] int64.
        context_lengths: Likewise: [R] int64.
    """

    def __init__(self, page_size: int, library: ctypes.CDLL) -> None:
        """Remember the page size, in positions, and the kernels."""
        self.page_size = page_size
        self._library = library
        self.inputs: BatchInputs | None = None
        self.query_starts = np.zeros(1, dtype=np.int64)
        self.context_lengths = np.zeros(0, dtype=np.int64)

    def plan(self, inputs: BatchInputs) -> None:
        """Lay out what the kernel reads beside the cache."""
        self.inputs = inputs
        self.query_starts = np.array(inputs.query_starts, dtype=np.int64)
        self.context_lengths = np.array(inputs.context_lengths, dtype=np.int64)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        assert self.inputs is not None
        query = query.contiguous()
        num_tokens, num_heads, key_dim = query.shape
        num_kv_heads, value_dim = values.shape[2], head_width(values)
        output = torch.empty(num_tokens, num_heads, value_dim)
        table = self.inputs.block_table
        sinks = options.sinks
        if sinks is not None:
            sinks = sinks.detach().float().contiguous()
        sizes = np.array(
            (
                *table.shape, self.page_size, num_heads, num_kv_heads, key_dim, value_dim,
                options.sliding_window or 0, torch.get_num_threads(), KV_FORMATS[keys.dtype],
                *distances(keys), *distances(values),
            ),
            dtype=np.int64,
        )  # fmt: skip
        self._library.paged_attention(
            query.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            output.data_ptr(),
            table.data_ptr(),
            self.query_starts.ctypes.data,
            self.context_lengths.ctypes.data,
            None if sinks is None else sinks.data_ptr(),
            sizes.ctypes.data,
            options.scaling,
            options.softcap or 0.0,
        )
        return output
