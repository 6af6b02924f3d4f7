"""Block accounting, checked from outside: what must hold between any two steps of an engine.

Looks into private fields on purpose. A broken invariant here is a wrong answer some steps later,
and much harder to find there.
"""

import itertools
from collections import Counter
from collections.abc import Iterable

from engine.cache.block_manager import BlockManager
from engine.cache.block_pool import BlockPool
from engine.cache.offload import HostBlocks
from engine.cache.prefix_index import BlockName, PrefixIndex
from engine.requests import RequestState, RequestStatus
from engine.scheduler import Scheduler


def check_pool(pool: BlockPool, holders: Iterable[RequestState]) -> None:
    """Reference counts are the block tables', and the free list holds exactly the rest, once."""
    counts: Counter[int] = Counter()
    for request in holders:
        assert len(set(request.block_ids)) == len(request.block_ids), request.request_id
        counts.update(request.block_ids)
    assert pool._ref_counts == [counts[block] for block in range(pool.num_blocks)]
    free = pool.free_blocks()
    assert len(free) == len(set(free)), "a block is in the free list twice"
    assert set(free) == {block for block in range(pool.num_blocks) if not counts[block]}
    assert pool.num_free == len(free)
    assert len(free) + len(counts) == pool.num_blocks
    around = [pool._head, *free, pool._head]
    for before, after in itertools.pairwise(around):
        assert pool._next[before] == after
        assert pool._previous[after] == before


def check_index(index: PrefixIndex, pool: BlockPool) -> None:
    """The index's tables tell one story, and blocks worth keeping are reused after blank ones."""
    assert {block: name for name, block in index._block_of.items()} == index._name_of
    siblings: dict[BlockName | None, set[int]] = {}
    for block, name in index._name_of.items():
        siblings.setdefault(name.parent, set()).add(block)
    assert {parent: set(blocks) for parent, blocks in index._siblings.items()} == siblings
    worth_keeping = [block in index for block in pool.free_blocks()]
    assert worth_keeping == sorted(worth_keeping), "a blank block stands behind a cached one"


def check_tables(blocks: BlockManager, holders: Iterable[RequestState]) -> None:
    """A request has room for what it computed, and what the index says of its blocks is true."""
    page_size = blocks.page_size
    for request in holders:
        assert blocks.num_blocks_for(request.num_computed) <= len(request.block_ids)
        assert 0 <= request.num_computed <= request.num_tokens
        assert request.num_indexed_blocks <= request.num_computed // page_size
        for place, block in enumerate(request.block_ids):
            if block not in blocks.index:
                continue
            # Nobody may write to a findable block, so it lies before what is still to compute.
            assert (place + 1) * page_size <= request.num_computed, "a findable block is open"
            page = request.tokens_between(place * page_size, (place + 1) * page_size)
            assert blocks.index.name_of(block).tokens.tolist() == page.tolist()


def check_blocks(blocks: BlockManager, holders: Iterable[RequestState]) -> None:
    """Everything about the blocks of the requests that hold some."""
    holders = list(holders)
    check_pool(blocks.pool, holders)
    check_index(blocks.index, blocks.pool)
    check_tables(blocks, holders)
    if not blocks.allow_sharing:
        assert len(blocks.index) == 0


def check_host(host: HostBlocks, savers: Iterable[RequestState]) -> None:
    """Each block of the host buffer is free or holds part of one request."""
    held = [block for request in savers for block in request.host_block_ids]
    assert len(set(held)) == len(held)
    assert sorted(held + host._free) == sorted(set(held) | set(host._free))
    assert len(held) + host.num_free == host.num_host_blocks
    for request in savers:
        num_blocks = -(-request.num_saved // host._page_size)
        assert len(request.host_block_ids) == num_blocks, request.request_id


def check_scheduler(scheduler: Scheduler) -> None:
    """Everything about a scheduler between two steps."""
    running, waiting = list(scheduler.running.values()), list(scheduler.waiting)
    check_blocks(scheduler.blocks, running)
    assert list(scheduler.running) == [request.request_id for request in running]
    assert not {id(request) for request in running} & {id(request) for request in waiting}
    check_host(scheduler.blocks.host, waiting)
    for request in waiting:
        assert request.status is RequestStatus.PENDING
        assert (request.block_ids, request.num_computed) == ([], 0)
    for request in running:
        assert (request.host_block_ids, request.num_saved) == ([], 0)
        assert request.status in (RequestStatus.PREFILLING, RequestStatus.DECODING)
    assert len(running) <= scheduler._max_requests


def check_idle(scheduler: Scheduler) -> None:
    """No request is left, and every block is free."""
    check_scheduler(scheduler)
    assert not scheduler.has_requests()
    assert scheduler.blocks.pool.num_free == scheduler.blocks.pool.num_blocks
