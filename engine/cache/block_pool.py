"""Reference counts of blocks and the order in which free ones are taken.

Pure integers; no tensors, no requests. Engine thread only. A block with no holder sits in a doubly
linked list threaded through two arrays, so that taking, returning and reviving a block are O(1) in
the number of blocks. The list is also the LRU of cached blocks:

    head -> [blank ... blank][cached, freed longest ago ... cached, freed last] -> tail

`allocate` takes the head. A blank block (one nobody will look up) is returned to the head, a cached
one to the tail. A deque cannot do this: reviving a cached block removes from the middle.
"""


class BlockPool:
    """Blocks 0 .. num_blocks - 1, each free or held by one or more requests."""

    def __init__(self, num_blocks: int) -> None:
        """Start with every block free and blank.

        Args:
            num_blocks: Number of blocks, at least 1.
        """
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least 1 block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._ref_counts = [0] * num_blocks
        self._head = num_blocks  # the list's sentinel is the index past the last block
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]

    def ref_count(self, block_id: int) -> int:
        """Return how many block tables hold the block."""
        return self._ref_counts[block_id]

    def allocate(self) -> int:
        """Take the free block that is least worth keeping.

        Raises:
            IndexError: No block is free; callers check `num_free` first.
        """
        block_id = self._next[self._head]
        if block_id == self._head:
            raise IndexError("no free block")
        self._unlink(block_id)
        self._ref_counts[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Add a holder to a block, reviving it if it was free."""
        if self._ref_counts[block_id] == 0:
            self._unlink(block_id)
        self._ref_counts[block_id] += 1

    def free(self, block_id: int, *, is_cached: bool) -> None:
        """Drop one holder; with none left the block becomes free.

        Args:
            block_id: A held block.
            is_cached: Whether the prefix index can find the block, so that it is worth keeping.
        """
        count = self._ref_counts[block_id]
        assert count > 0, f"block {block_id} was freed twice"
        self._ref_counts[block_id] = count - 1
        if count > 1:
            return
        before = self._previous[self._head] if is_cached else self._head
        self._link_after(before, block_id)

    def free_blocks(self) -> list[int]:
        """Return the free blocks in the order in which they would be taken; O(num_free)."""
        blocks = []
        block_id = self._next[self._head]
        while block_id != self._head:
            blocks.append(block_id)
            block_id = self._next[block_id]
        return blocks

    def _unlink(self, block_id: int) -> None:
        after, before = self._next[block_id], self._previous[block_id]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1

    def _link_after(self, before: int, block_id: int) -> None:
        after = self._next[before]
        self._next[before] = block_id
        self._previous[block_id] = before
        self._next[block_id] = after
        self._previous[after] = block_id
        self.num_free += 1
