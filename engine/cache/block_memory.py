"""Memory for blocks: how the rows of a block lie, and pages that are large enough.

Engine assembly only. Blocks are always seen as [num_blocks, page_size, Hkv, W]. In memory one is

    heads last    page_size rows of Hkv heads    what flash-attn reads; a run of blocks is one view
    heads first   Hkv runs of page_size rows     what our kernel reads: a head's keys in one stretch
"""

import contextlib
import mmap

import torch

# A mapping of less is not worth it: it would not fill two large pages.
MIN_MAPPED_BYTES = 4 << 20


def allocate_blocks(
    shape: tuple[int, int, int, int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    heads_first: bool = False,
) -> torch.Tensor:
    """Return memory for blocks, its contents undefined.

    On a CPU it is reserved here and committed by the kernel when it is first written.

    Args:
        shape: (num_blocks, page_size, Hkv, W).
        dtype: Of the elements.
        device: Where.
        heads_first: How a block lies in memory.

    Returns:
        [num_blocks, page_size, Hkv, W].
    """
    num_blocks, page_size, num_heads, width = shape
    if not heads_first:
        return _allocate(shape, dtype, device)
    return _allocate((num_blocks, num_heads, page_size, width), dtype, device).transpose(1, 2)


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
