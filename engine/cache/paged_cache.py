"""The tensors of the paged cache: where keys and values lie.

Owned by the engine thread. Each layer has one tensor of keys and one of values:

    keys[layer]  [num_blocks, page_size, Hkv, D]      slot = block_id * page_size + offset

How a block lies in memory is up to who reads it, see `block_memory`.
"""

from collections.abc import Sequence

import torch

from engine.batch import BlockCopy
from engine.cache.block_memory import allocate_blocks
from engine.cache.offload import allocate_host_tensors
from engine.cache.sizing import LayerGeometry


class PagedCache:
    """Keys and values of every layer, by block and offset."""

    def __init__(
        self,
        layers: Sequence[LayerGeometry],
        num_blocks: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        heads_first: bool = False,
    ) -> None:
        """Allocate the tensors.

        Args:
            layers: What each keeps per position.
            num_blocks: Blocks.
            page_size: Positions in a block.
            dtype: Of what is kept.
            device: Where.
            heads_first: How a block lies in memory, see `block_memory`.
        """
        self.layers = list(layers)
        self.page_size = page_size
        self.num_blocks = num_blocks

        def allocate(num_heads: int, width: int) -> torch.Tensor:
            shape = (num_blocks, page_size, num_heads, width)
            return allocate_blocks(shape, dtype=dtype, device=device, heads_first=heads_first)

        self.keys = [allocate(layer.num_kv_heads, layer.key_dim) for layer in layers]
        self.values = [allocate(layer.num_kv_heads, layer.value_dim) for layer in layers]

        self._tensors = (*self.keys, *self.values)
        self._host_tensors: list[torch.Tensor] = []

    def add_host_blocks(self, num_blocks: int) -> None:
        """Allocate a buffer on the host, whose blocks are numbered after the cache's own."""
        self._host_tensors = allocate_host_tensors(self._tensors, num_blocks)

    def locate(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the blocks and the offsets in them of slots: [T] int64 each."""
        return slots // self.page_size, slots % self.page_size

    def write(
        self,
        layer: int,
        places: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Store the keys and values of one layer for this step's tokens.

        Args:
            layer: Index of the layer.
            places: Where, as `locate` returns it.
            keys: [T, Hkv, D] in any float dtype.
            values: [T, Hkv, Dv].
        """
        self.keys[layer].index_put_(places, keys.to(self.keys[layer].dtype))
        self.values[layer].index_put_(places, values.to(self.values[layer].dtype))

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the leading slots of blocks, in the given order, within the cache or to the host.

        The order matters: a block that is the source of one copy may be the destination of a later
        one.
        """
        for copy in copies:
            sources, source = self._find(copy.source)
            destinations, destination = self._find(copy.destination)
            num = copy.num_slots
            for old, new in zip(sources, destinations, strict=True):
                new[destination, :num].copy_(old[source, :num], non_blocking=True)

    def _find(self, block_id: int) -> tuple[Sequence[torch.Tensor], int]:
        """Return the tensors that hold a block, and its index in each."""
        if block_id < self.num_blocks:
            return self._tensors, block_id
        return self._host_tensors, block_id - self.num_blocks
