"""The free list: what is taken next, what is kept longest, and that nothing is in it twice."""

import pytest

from engine.cache.block_pool import BlockPool


def allocate(pool, count):
    return [pool.allocate() for _ in range(count)]


def test_a_new_pool_gives_each_block_once():
    pool = BlockPool(4)
    assert sorted(allocate(pool, 4)) == [0, 1, 2, 3]
    assert pool.num_free == 0


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_a_pool_without_blocks_is_refused(num_blocks):
    with pytest.raises(ValueError, match="at least 1 block"):
        BlockPool(num_blocks)


def test_allocating_from_an_empty_pool_raises():
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(IndexError):
        pool.allocate()
    assert pool.num_free == 0


def test_blank_blocks_are_taken_before_cached_ones():
    pool = BlockPool(3)
    first, second, third = allocate(pool, 3)
    pool.free(first, is_cached=True)
    pool.free(second, is_cached=False)
    pool.free(third, is_cached=True)
    assert pool.free_blocks() == [second, first, third]


def test_cached_blocks_are_taken_in_the_order_in_which_they_were_freed():
    pool = BlockPool(3)
    blocks = allocate(pool, 3)
    for block in reversed(blocks):
        pool.free(block, is_cached=True)
    assert allocate(pool, 3) == blocks[::-1]


def test_a_shared_block_is_free_only_when_its_last_holder_leaves():
    pool = BlockPool(1)
    block = pool.allocate()
    pool.share(block)
    pool.free(block, is_cached=True)
    assert (pool.ref_count(block), pool.num_free) == (1, 0)
    pool.free(block, is_cached=True)
    assert (pool.ref_count(block), pool.num_free) == (0, 1)


def test_sharing_a_free_block_takes_it_out_of_the_middle_of_the_list():
    pool = BlockPool(3)
    first, second, third = allocate(pool, 3)
    for block in (first, second, third):
        pool.free(block, is_cached=True)
    pool.share(second)
    assert pool.free_blocks() == [first, third]
    assert pool.ref_count(second) == 1
    assert allocate(pool, 2) == [first, third]


def test_a_revived_block_becomes_the_one_kept_longest():
    pool = BlockPool(2)
    first, second = allocate(pool, 2)
    pool.free(first, is_cached=True)
    pool.free(second, is_cached=True)
    pool.share(first)
    pool.free(first, is_cached=True)
    assert pool.free_blocks() == [second, first]


def test_freeing_a_block_twice_is_caught():
    pool = BlockPool(1)
    block = pool.allocate()
    pool.free(block, is_cached=False)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(block, is_cached=False)
