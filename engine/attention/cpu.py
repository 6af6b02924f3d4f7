"""Attention by our own kernel: fp32 on a CPU, straight over the block tables.

Engine thread only. Nothing is gathered, no mask is built, heads that share keys read them once. The
arithmetic is checked against `torch_reference`, which also takes the layers this does not do.
"""

import ctypes

import numpy as np
import torch

from engine.attention.interface import AttentionOptions
from engine.attention.torch_reference import TorchReferenceBackend
from engine.batch import BatchInputs


class CpuBackend:
    """`AttentionBackend` over the compiled kernel."""

    def __init__(self, page_size: int, library: ctypes.CDLL) -> None:
        """Remember the page size, in positions, and the kernels."""
        self._page_size = page_size
        self._library = library
        self._reference = TorchReferenceBackend(page_size)
        self._inputs: BatchInputs | None = None
        self._is_reference_planned = False
        self._starts = np.zeros(1, dtype=np.int64)
        self._lengths = np.zeros(0, dtype=np.int64)

    def plan(self, inputs: BatchInputs) -> None:
        """Lay out what the kernel reads beside the cache."""
        self._inputs = inputs
        self._is_reference_planned = False
        self._starts = np.array(inputs.query_starts, dtype=np.int64)
        self._lengths = np.array(inputs.context_lengths, dtype=np.int64)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        assert self._inputs is not None
        if options.sinks is not None:
            return self._attend_by_reference(query, keys, values, options)
        query = query.contiguous()
        num_tokens, num_heads, key_dim = query.shape
        value_dim = values.shape[2]
        output = torch.empty(num_tokens, num_heads, value_dim)
        table = self._inputs.block_table
        sizes = np.array(
            (
                *table.shape, self._page_size, num_heads, keys.shape[1], key_dim, value_dim,
                options.sliding_window or 0, torch.get_num_threads(),
            ),
            dtype=np.int64,
        )  # fmt: skip
        self._library.paged_attention(
            query.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            output.data_ptr(),
            table.data_ptr(),
            self._starts.ctypes.data,
            self._lengths.ctypes.data,
            sizes.ctypes.data,
            options.scaling,
            options.softcap or 0.0,
        )
        return output

    def _attend_by_reference(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Attend with sinks, which the kernel does not know."""
        assert self._inputs is not None
        if not self._is_reference_planned:
            self._reference.plan(self._inputs)
            self._is_reference_planned = True
        return self._reference.attend(query, keys, values, options)
