"""Block tables of requests: matching, growing, entering in the index, returning.

Joins `BlockPool`, `PrefixIndex` and `HostBlocks` for `RequestState`s. Engine thread only; no
tensors. `attach_prefix`, `swap_in` and `extend` fill a request's block table, `free` empties it.

Positions of a running request, page_size = 4:

    |0 1 2 3|4 5 6 7|8 9 . .|        block_ids has 3 entries
     <------ num_computed -->
     <- indexed ----><- not yet: not full ->
"""

import numpy as np
from numpy.typing import NDArray

from engine.batch import BlockCopy
from engine.cache.block_pool import BlockPool
from engine.cache.offload import HostBlocks
from engine.cache.prefix_index import BlockName, PrefixIndex, root_name
from engine.requests import RequestState, RequestStatus


class BlockManager:
    """Gives blocks to requests and takes them back; finds the ones that already hold a prefix."""

    def __init__(
        self, num_blocks: int, page_size: int, *, allow_sharing: bool, num_host_blocks: int = 0
    ) -> None:
        """Start with all blocks free.

        Args:
            num_blocks: Blocks in the cache.
            page_size: Positions in a block.
            allow_sharing: Whether prompts may reuse blocks of earlier requests.
            num_host_blocks: Blocks on the host that preempted requests are swapped to.
        """
        self.page_size = page_size
        self.allow_sharing = allow_sharing
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex()
        self.host = HostBlocks(num_blocks, num_host_blocks, page_size)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold this many positions."""
        return -(-num_tokens // self.page_size)

    def num_missing_blocks(self, request: RequestState, num_tokens: int) -> int:
        """Return how many blocks the request lacks to hold this many positions."""
        return max(0, self.num_blocks_for(num_tokens) - len(request.block_ids))

    def attach_prefix(self, request: RequestState) -> BlockCopy | None:
        """Give an empty request the blocks that already hold the start of its tokens.

        At least one token is left to compute, since its logits are needed. Sets `num_computed`,
        and `num_cached_tokens` on the first admission. What `swap_in` will bring is not copied.

        Returns:
            The copy that a partly matching block needs, if there is one.
        """
        assert not request.block_ids
        assert request.num_computed == 0
        # Logits and hidden states of prompt tokens are only computed, never found.
        if not self.allow_sharing or request.reads_whole_prompt:
            return None
        if self._can_fork(request):
            return self._fork(request)
        tokens = request.tokens_between(0, request.num_tokens - 1)
        for index in range(len(tokens) // self.page_size):
            page = tokens[index * self.page_size : (index + 1) * self.page_size]
            block_id = self.index.find(self._block_name(request, index, page))
            if block_id is None:
                break
            # The same object for the same content makes the next comparison short.
            request.block_names[index] = self.index.name_of(block_id)
            self.pool.share(block_id)
            request.block_ids.append(block_id)
        request.num_computed = len(request.block_ids) * self.page_size
        request.num_indexed_blocks = len(request.block_ids)
        copy = None
        if len(request.host_block_ids) <= len(request.block_ids):
            copy = self._attach_partial(request, tokens[request.num_computed :])
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed
        return copy

    def awaits_parent(self, request: RequestState) -> bool:
        """Return whether a request would compute a prompt that its parent is just computing."""
        parent = request.parent
        return (
            self.allow_sharing
            and parent is not None
            and request.num_preemptions == 0
            and parent.status is RequestStatus.PREFILLING
            and parent.num_computed < len(parent.prompt_ids) - 1
        )

    def _can_fork(self, request: RequestState) -> bool:
        """Return whether the parent's blocks hold the prompt but for its last token."""
        parent = request.parent
        return (
            parent is not None
            and request.num_preemptions == 0
            and parent.num_computed >= len(request.prompt_ids) - 1 > 0
        )

    def _fork(self, request: RequestState) -> BlockCopy | None:
        """Share the parent's full blocks of the prompt; take a copy of the one in which it ends."""
        parent, num_shared = request.parent, len(request.prompt_ids) - 1
        assert parent is not None
        num_full, num_slots = divmod(num_shared, self.page_size)
        for block_id in parent.block_ids[:num_full]:
            self.pool.share(block_id)
        request.block_ids.extend(parent.block_ids[:num_full])
        request.block_names.extend(parent.block_names[len(request.block_names) : num_full])
        request.num_indexed_blocks = num_full
        request.num_computed = num_full * self.page_size
        copy = None
        if num_slots and self.pool.num_free:
            copy = BlockCopy(parent.block_ids[num_full], self._allocate(), num_slots)
            request.block_ids.append(copy.destination)
            request.num_computed = num_shared
        request.num_cached_tokens = request.num_computed
        return copy

    def _attach_partial(self, request: RequestState, rest: NDArray[np.int32]) -> BlockCopy | None:
        """Take a new block for a copy of the sibling that shares most of the next page."""
        if len(rest) == 0:
            return None
        parent = self._parent_name(request, len(request.block_ids))
        partial = self.index.find_partial(parent, rest[: self.page_size])
        if partial is None or self.pool.num_free == 0:
            return None
        source, num_slots = partial
        # Held while the new block is taken: the least valuable free block may be the source itself.
        self.pool.share(source)
        if self.pool.num_free == 0:
            self.pool.free(source, is_cached=True)
            return None
        destination = self._allocate()
        self.pool.free(source, is_cached=True)
        request.block_ids.append(destination)
        request.num_computed += num_slots
        return BlockCopy(source, destination, num_slots)

    def is_cached(self, request: RequestState, index: int) -> bool:
        """Return whether a full block that `attach_prefix` once looked for is in the cache."""
        names = request.block_names
        return index < len(names) and self.index.find(names[index]) is not None

    def swap_in(self, request: RequestState) -> list[BlockCopy]:
        """Give a saved request blocks for what the index no longer has of it, and let go of these.

        Comes after `attach_prefix`, when enough blocks are free. The request goes on where it was
        preempted.

        Returns:
            The copies to make before the forward.
        """
        copies = [
            BlockCopy(source, self._allocate(), self.page_size)
            for source in request.host_block_ids[len(request.block_ids) :]
        ]
        if copies:
            request.block_ids.extend(copy.destination for copy in copies)
            request.num_computed = request.num_saved
        self.host.drop(request)
        return copies

    def detach(self, request: RequestState) -> None:
        """Undo `attach_prefix`: the request cannot start yet."""
        for block_id in reversed(request.block_ids):
            self.pool.free(block_id, is_cached=block_id in self.index)
        request.forget_blocks()

    def has_room(self, request: RequestState) -> bool:
        """Return whether the block table holds one position more than is computed."""
        return request.num_computed < len(request.block_ids) * self.page_size

    def extend(self, request: RequestState, num_tokens: int) -> bool:
        """Grow the block table to hold this many positions; all or nothing.

        Returns:
            False if there are too few free blocks; the request is then unchanged.
        """
        missing = self.num_missing_blocks(request, num_tokens)
        if missing > self.pool.num_free:
            return False
        request.block_ids.extend(self._allocate() for _ in range(missing))
        return True

    def commit(self, request: RequestState) -> None:
        """Enter in the index the blocks that `num_computed` has filled since the last call."""
        if not self.allow_sharing:
            return
        for index in range(request.num_indexed_blocks, request.num_computed // self.page_size):
            start = index * self.page_size
            page = request.tokens_between(start, start + self.page_size)
            self.index.insert(request.block_ids[index], self._block_name(request, index, page))
            request.num_indexed_blocks = index + 1

    def free(self, request: RequestState, *, discard: bool = False) -> None:
        """Take all blocks back; what they contain stays findable until they are reused.

        The last block goes back first, so that of one prompt the tail is reused before the head:
        a head without its tail is still a prefix, a tail without its head is nothing.

        Args:
            request: The request that gives up its blocks.
            discard: Make what only this request holds unfindable: it failed, and what it wrote may
                be the reason.
        """
        if not discard:
            self.commit(request)
            self._commit_tail(request)
        for block_id in reversed(request.block_ids):
            if discard and self.pool.ref_count(block_id) == 1:
                self.index.forget(block_id)
            self.pool.free(block_id, is_cached=block_id in self.index)
        request.forget_blocks()

    def _commit_tail(self, request: RequestState) -> None:
        """Enter the last, partly filled block; nobody writes to it any more."""
        full, num_tail_tokens = divmod(request.num_computed, self.page_size)
        if not self.allow_sharing or num_tail_tokens == 0:
            return
        tail = request.tokens_between(request.num_computed - num_tail_tokens, request.num_computed)
        self.index.insert(request.block_ids[full], self._parent_name(request, full).child(tail))

    def _allocate(self) -> int:
        block_id = self.pool.allocate()
        self.index.forget(block_id)
        return block_id

    def _parent_name(self, request: RequestState, index: int) -> BlockName:
        if index == 0:
            return root_name(request.salt)
        name: BlockName = request.block_names[index - 1]
        return name

    def _block_name(self, request: RequestState, index: int, page: NDArray[np.int32]) -> BlockName:
        """Return the name of the request's full block, made once in its life."""
        if index == len(request.block_names):
            request.block_names.append(self._parent_name(request, index).child(page))
        name: BlockName = request.block_names[index]
        return name
