"""Memory for blocks: how the rows of a block lie, and pages that are large enough.

Engine assembly only. Blocks are always seen as [num_blocks, page_size, Hkv, W]. In memory one is

    heads last    page_size rows of Hkv heads, of one layer's keys or values    what flash-attn
                  reads; a run of blocks is one view
    heads first   for each layer and head, page_size rows of keys, then of values    what our kernel
                  reads, in that order; the first blocks fill whole pages of memory
"""

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# A mapping of less is not worth it: it would not fill two large pages.
MIN_MAPPED_BYTES = 4 << 20
LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What a layer keeps in a block.

    Attributes:
        num_heads: Key and value heads Hkv.
        key_width: Elements of a key's row W.
        value_width: Of a value's.
    """

    num_heads: int
    key_width: int
    value_width: int


def allocate_layers(
    layers: Sequence[BlockShape],
    num_blocks: int,
    page_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    heads_first: bool = False,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return memory for the blocks of all layers, its contents undefined.

    On a CPU it is reserved here and committed by the kernel when it is first written.

    Args:
        layers: What each keeps.
        num_blocks: Blocks.
        page_size: Positions in a block.
        dtype: Of the elements.
        device: Where.
        heads_first: How a block lies in memory.

    Returns:
        Keys and values of each layer: [num_blocks, page_size, Hkv, W].
    """
    if heads_first:
        return _allocate_together(layers, num_blocks, page_size, dtype, device)
    return [
        (
            _allocate((num_blocks, page_size, layer.num_heads, layer.key_width), dtype, device),
            _allocate((num_blocks, page_size, layer.num_heads, layer.value_width), dtype, device),
        )
        for layer in layers
    ]


def _allocate_together(
    layers: Sequence[BlockShape],
    num_blocks: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    sizes = [page_size * (layer.key_width + layer.value_width) for layer in layers]  # of a head
    block_size = sum(layer.num_heads * size for layer, size in zip(layers, sizes, strict=True))
    # Blocks begin with a line of the processor's caches.
    line = LINE_BYTES // dtype.itemsize
    block_size = -(-block_size // line) * line
    memory = _allocate((num_blocks, block_size), dtype, device)
    views = []
    offset = 0
    for layer, size in zip(layers, sizes, strict=True):
        keys, values = (
            memory.as_strided(
                (num_blocks, page_size, layer.num_heads, width),
                (block_size, width, size, 1),
                begin if num_blocks else 0,
            )
            for width, begin in (
                (layer.key_width, offset),
                (layer.value_width, offset + page_size * layer.key_width),
            )
        )
        views.append((keys, values))
        offset += layer.num_heads * size
    return views


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if device.type != "cpu" or num_bytes < MIN_MAPPED_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Reading a long context jumps from block to block, and with pages of 4 KiB much of the time is
    # spent on looking up where they are. A kernel that has no others says so.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
