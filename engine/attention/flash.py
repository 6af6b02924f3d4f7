"""Attention by the flash-attn package: one varlen call over block tables for the whole batch.

Engine thread only, NVIDIA GPUs only. Imported by `select_backend` behind a guard, since the package
is optional; the arithmetic is checked against `torch_reference` by the gpu tests.
"""

import torch
from flash_attn import flash_attn_varlen_func

from engine.attention.interface import AttentionOptions
from engine.batch import BatchInputs

# flash-attn 2 reads pages of a multiple of 256 positions.
PAGE_SIZE_MULTIPLE = 256


class FlashBackend:
    """`AttentionBackend` over flash-attn's varlen kernel."""

    def __init__(self) -> None:
        """Start without a step."""
        self._query_starts = torch.empty(0)
        self._key_starts = torch.empty(0)
        self._block_table = torch.empty(0)
        self._max_queries = 0
        self._max_context = 0

    def plan(self, inputs: BatchInputs) -> None:
        """Put the step's offsets and block tables on the device."""
        device = inputs.slots.device
        lengths = torch.tensor([0, *inputs.context_lengths], dtype=torch.int32)
        starts = torch.tensor(inputs.query_starts, dtype=torch.int32)
        self._max_queries = int((starts[1:] - starts[:-1]).max())
        self._max_context = int(lengths.max())
        self._key_starts = lengths.cumsum(0, dtype=torch.int32).to(device)
        self._query_starts = starts.to(device)
        self._block_table = inputs.block_table.to(device)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        window = (-1, -1) if options.sliding_window is None else (options.sliding_window - 1, 0)
        output: torch.Tensor = flash_attn_varlen_func(
            query,
            keys,
            values,
            cu_seqlens_q=self._query_starts,
            cu_seqlens_k=self._key_starts,
            max_seqlen_q=self._max_queries,
            max_seqlen_k=self._max_context,
            softmax_scale=options.scaling,
            causal=True,
            window_size=window,
            softcap=options.softcap or 0.0,
            block_table=self._block_table,
        )
        return output
