"""The tensors of the paged cache: where keys and values lie.

Owned by the engine thread. Each layer has one tensor of keys and one of values:

    keys[layer]  [num_blocks * page_size, Hkv, D]      slot = block_id * page_size + offset

so that a block is a run of page_size rows, a run of neighbouring blocks is one view, and the same
memory seen as [num_blocks, page_size, Hkv, D] is what flash-attn's block tables index.
"""

from collections.abc import Sequence

import torch

from engine.batch import BlockCopy
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
        """Copy the leading slots of blocks, in the given order.

        The order matters: a block that is the source of one copy may be the destination of a later
        one.
        """
        for copy in copies:
            source = copy.source * self.page_size
            destination = copy.destination * self.page_size
            for tensor in (*self.keys, *self.values):
                tensor[destination : destination + copy.num_slots] = tensor[
                    source : source + copy.num_slots
                ]
