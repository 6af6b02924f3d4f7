"""The tensors of the paged cache: where keys and values lie.

Owned by the engine thread. Each layer has one tensor of keys and one of values:

    keys[layer]  [num_blocks * page_size, Hkv, D]      slot = block_id * page_size + offset

so that a block is a run of page_size rows, a run of neighbouring blocks is one view, and the same
memory seen as [num_blocks, page_size, Hkv, D] is what flash-attn's block tables index.
"""

from collections.abc import Sequence

import torch

from engine.batch import BlockCopy
from engine.cache.offload import allocate_host_tensors
from engine.cache.sizing import LayerGeometry


class PagedCache:
    """Keys and values of every layer, by slot."""

    def __init__(
        self,
        layers: Sequence[LayerGeometry],
        num_blocks: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the tensors.

        On a CPU the memory is reserved here and committed by the kernel when a slot is first
        written, so a large cache that stays empty costs nothing.
        """
        self.layers = list(layers)
        self.page_size = page_size
        self.num_blocks = num_blocks
        num_slots = num_blocks * page_size
        self.keys = [
            torch.empty(num_slots, layer.num_kv_heads, layer.key_dim, dtype=dtype, device=device)
            for layer in layers
        ]
        self.values = [
            torch.empty(num_slots, layer.num_kv_heads, layer.value_dim, dtype=dtype, device=device)
            for layer in layers
        ]

        self._tensors = (*self.keys, *self.values)
        self._host_tensors: list[torch.Tensor] = []

    def add_host_blocks(self, num_blocks: int) -> None:
        """Allocate a buffer on the host, whose blocks are numbered after the cache's own."""
        num_slots = num_blocks * self.page_size
        self._host_tensors = allocate_host_tensors(self._tensors, num_slots)

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store the keys and values of one layer for this step's tokens.

        Args:
            layer: Index of the layer.
            slots: [T] int64.
            keys: [T, Hkv, D] in any float dtype.
            values: [T, Hkv, Dv].
        """
        self.keys[layer].index_copy_(0, slots, keys.to(self.keys[layer].dtype))
        self.values[layer].index_copy_(0, slots, values.to(self.values[layer].dtype))

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the leading slots of blocks, in the given order, within the cache or to the host.

        The order matters: a block that is the source of one copy may be the destination of a later
        one.
        """
        for copy in copies:
            sources, source = self._locate(copy.source)
            destinations, destination = self._locate(copy.destination)
            num = copy.num_slots
            for old, new in zip(sources, destinations, strict=True):
                new[destination : destination + num].copy_(
                    old[source : source + num], non_blocking=True
                )

    def _locate(self, block_id: int) -> tuple[Sequence[torch.Tensor], int]:
        """Return the tensors that hold a block, and its first slot in each."""
        if block_id < self.num_blocks:
            return self._tensors, block_id * self.page_size
        return self._host_tensors, (block_id - self.num_blocks) * self.page_size
