"""The host buffer that preempted requests are swapped to: its accounting and its memory.

`HostBlocks` is pure integers, engine thread only. Its blocks are numbered after the cache's own, so
that a swap is a list of ordinary block copies that keep their order among the others of a step:

    0 .. num_blocks - 1               blocks of the cache
    num_blocks .. + num_host_blocks   blocks of the buffer

A request's positions are copied out whole when it is preempted, and what the prefix index no longer
knows of them is copied back when it starts again. Where the buffer is full, they are recomputed.
"""

from collections.abc import Sequence

import torch

from engine.batch import BlockCopy
from engine.requests import RequestState


class HostBlocks:
    """Blocks of the host buffer, each free or holding part of a preempted request."""

    def __init__(self, num_blocks: int, num_host_blocks: int, page_size: int) -> None:
        """Start with all of them free.

        Args:
            num_blocks: Blocks in the cache, after which these are numbered.
            num_host_blocks: Blocks in the buffer; 0 swaps nothing.
            page_size: Positions in a block.
        """
        self.num_host_blocks = num_host_blocks
        self._page_size = page_size
        self._free = list(range(num_blocks + num_host_blocks - 1, num_blocks - 1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    def save(self, request: RequestState) -> list[BlockCopy]:
        """Take blocks for what a request has computed; none if they do not suffice.

        Returns:
            The copies to make before the request's own blocks are written by others.
        """
        assert not request.host_block_ids, f"{request.request_id} is saved already"
        # Like a cached prefix, a saved one leaves a token to compute, since its logits are needed.
        num_saved = min(request.num_computed, request.num_tokens - 1)
        num_blocks = -(-num_saved // self._page_size)
        if num_blocks == 0 or num_blocks > self.num_free:
            return []
        request.host_block_ids = [self._free.pop() for _ in range(num_blocks)]
        request.num_saved = num_saved
        return [
            BlockCopy(source, destination, self._page_size)
            for source, destination in zip(request.block_ids, request.host_block_ids, strict=False)
        ]

    def drop(self, request: RequestState) -> None:
        """Free what a request has here; copies already asked for still find it unchanged.

        Copies are made in the order in which they were asked for, and nobody writes here but they.
        """
        self._free.extend(reversed(request.host_block_ids))
        request.host_block_ids = []
        request.num_saved = 0


def allocate_pinned_tensors(tensors: Sequence[torch.Tensor], num_blocks: int) -> list[torch.Tensor]:
    """Return page-locked host memory for this many blocks of each tensor of a GPU.

    So that copies run in the order of its stream without holding the host up.
    """
    return [
        torch.empty((num_blocks, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=num_blocks > 0)
        for tensor in tensors
    ]
