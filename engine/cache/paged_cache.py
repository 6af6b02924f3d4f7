"""The tensors of the paged cache: where keys and values lie.

Owned by the engine thread. Each layer has one tensor of keys and one of values:

    keys[layer]  [num_blocks, page_size, Hkv, W]      slot = block_id * page_size + offset

How a block lies in memory is up to who reads it, see `block_memory`; what the W elements of a row
mean says `row_formats`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.batch import BlockCopy
from engine.cache.block_memory import BlockShape, allocate_layers
from engine.cache.offload import allocate_pinned_tensors
from engine.cache.row_formats import encode_rows, row_width
from engine.cache.sizing import LayerGeometry
from engine.kernels.cpu.kv_rows import store_kv_rows
from engine.kernels.cpu.library import kernels


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of a step are kept: [T] int64 each.

    Attributes:
        slots: As the scheduler numbers them.
        blocks: The block of each.
        offsets: The position in it.
    """

    slots: torch.Tensor
    blocks: torch.Tensor
    offsets: torch.Tensor


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
            dtype: Of the rows, see `row_formats`.
            device: Where.
            heads_first: How a block lies in memory, see `block_memory`. Our kernels, which want it
                so, also write the rows.
        """
        self.layers = list(layers)
        self.page_size = page_size
        self.num_blocks = num_blocks

        shapes = [
            BlockShape(
                layer.num_kv_heads,
                row_width(layer.key_dim, dtype),
                row_width(layer.value_dim, dtype),
            )
            for layer in layers
        ]
        self._allocate = partial(
            allocate_layers, shapes, page_size=page_size, dtype=dtype, heads_first=heads_first
        )
        pairs = self._allocate(num_blocks, device=device)
        self.keys = [keys for keys, _ in pairs]
        self.values = [values for _, values in pairs]

        self._library = kernels() if heads_first else None
        self._tensors = [tensor for pair in pairs for tensor in pair]
        self._host_tensors: list[torch.Tensor] = []

    def add_host_blocks(self, num_blocks: int) -> None:
        """Allocate a buffer on the host, whose blocks are numbered after the cache's own."""
        if self._tensors[0].device.type == "cuda":
            self._host_tensors = allocate_pinned_tensors(self._tensors, num_blocks)
            return
        pairs = self._allocate(num_blocks, device=torch.device("cpu"))
        self._host_tensors = [tensor for pair in pairs for tensor in pair]

    def locate(self, slots: torch.Tensor) -> Places:
        """Return where slots are: [T] int64."""
        return Places(slots, slots // self.page_size, slots % self.page_size)

    def write(self, layer: int, places: Places, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the keys and values of one layer for this step's tokens.

        Args:
            layer: Index of the layer.
            places: Where.
            keys: [T, Hkv, D] in any float dtype.
            values: [T, Hkv, Dv].
        """
        for cached, numbers in ((self.keys[layer], keys), (self.values[layer], values)):
            if self._library is None:
                rows = encode_rows(numbers, cached.dtype)
                cached.index_put_((places.blocks, places.offsets), rows)
            else:
                store_kv_rows(self._library, numbers.float(), cached, places.slots)

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
