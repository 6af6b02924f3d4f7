"""The host buffer: which blocks it gives, what it takes back, and that copies reach it."""

import pytest
import torch

from engine.batch import BlockCopy
from engine.cache.block_manager import BlockManager
from engine.cache.offload import HostBlocks
from engine.cache.paged_cache import PagedCache
from engine.cache.sizing import LayerGeometry
from tests.engine.builders import make_request
from tests.engine.soundness import check_host

PAGE = 4


@pytest.fixture
def holders(cache_is_sound):
    """The requests that hold blocks when the test is over; others must hold none."""
    return cache_is_sound.holders


def computed(blocks, name, length, first=1):
    request = make_request(name, list(range(first, first + length)))
    assert blocks.extend(request, length)
    request.num_computed = length
    blocks.commit(request)
    return request


def test_the_blocks_that_were_computed_are_copied_out_whole():
    host = HostBlocks(10, 4, PAGE)
    request = make_request(prompt=list(range(9)))
    request.block_ids, request.num_computed = [7, 3, 5], 6
    assert host.save(request) == [BlockCopy(7, 10, PAGE), BlockCopy(3, 11, PAGE)]
    assert (request.host_block_ids, request.num_saved) == ([10, 11], 6)
    check_host(host, [request])


def test_a_request_that_does_not_fit_is_not_saved_in_part():
    host = HostBlocks(10, 1, PAGE)
    request = make_request(prompt=list(range(9)))
    request.block_ids, request.num_computed = [7, 3], 8
    assert host.save(request) == []
    assert (request.host_block_ids, request.num_saved, host.num_free) == ([], 0, 1)


def test_a_token_is_left_to_compute():
    host = HostBlocks(10, 4, PAGE)
    request = make_request(prompt=list(range(5)))
    request.block_ids, request.num_computed = [7, 3], 5
    assert len(host.save(request)) == 1
    assert request.num_saved == 4


def test_nothing_computed_is_nothing_to_save():
    assert HostBlocks(10, 4, PAGE).save(make_request()) == []


def test_dropping_gives_the_blocks_back_and_may_be_done_twice():
    host = HostBlocks(10, 2, PAGE)
    request = make_request(prompt=list(range(9)))
    request.block_ids, request.num_computed = [7, 3], 8
    host.save(request)
    for _ in range(2):
        host.drop(request)
    check_host(host, [request])
    assert host.num_free == 2


@pytest.mark.parametrize("sharing", [True, False])
def test_only_what_the_cache_no_longer_holds_is_copied_back(sharing, holders):
    blocks = BlockManager(3, PAGE, allow_sharing=sharing, num_host_blocks=8)
    request = computed(blocks, "a", 9)
    request.generated_tokens.append(99)
    blocks.host.save(request)
    blocks.free(request)
    taken = computed(blocks, "b", 4, first=50)  # reuses one block, the tail of the first request
    blocks.free(taken, discard=True)
    blocks.attach_prefix(request)
    copies = blocks.swap_in(request)
    holders.append(request)
    assert [copy.source for copy in copies] == ([5] if sharing else [3, 4, 5])
    assert request.num_computed == 9
    assert len(request.block_ids) == 3
    assert blocks.host.num_free == 8


def test_a_request_of_which_everything_is_still_cached_copies_nothing(holders):
    blocks = BlockManager(4, PAGE, allow_sharing=True, num_host_blocks=8)
    request = computed(blocks, "a", 8)
    request.generated_tokens.append(99)
    blocks.host.save(request)
    blocks.free(request)
    blocks.attach_prefix(request)
    assert blocks.swap_in(request) == []
    holders.append(request)
    assert (request.num_computed, blocks.host.num_free) == (8, 8)


def test_what_will_be_swapped_in_is_not_copied_from_a_sibling(holders):
    blocks = BlockManager(6, PAGE, allow_sharing=True, num_host_blocks=8)
    request = computed(blocks, "a", 7)
    request.generated_tokens.append(99)
    blocks.host.save(request)
    blocks.free(request)
    assert blocks.attach_prefix(request) is None
    assert [copy.source for copy in blocks.swap_in(request)] == [7]
    holders.append(request)


@pytest.mark.parametrize("heads_first", [False, True])
def test_copies_reach_the_host_and_come_back_in_order(heads_first):
    layers = [LayerGeometry(4, 2, 3, 3, None), LayerGeometry(4, 1, 5, 2, 8)]
    cpu = torch.device("cpu")
    cache = PagedCache(layers, 3, PAGE, dtype=torch.float32, device=cpu, heads_first=heads_first)
    cache.add_host_blocks(2)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.arange(12.0).view(3, PAGE, 1, 1).expand_as(tensor))
    out, back = BlockCopy(1, 4, PAGE), BlockCopy(4, 0, PAGE)
    cache.copy_blocks([out, BlockCopy(2, 1, PAGE), back])
    for tensor in (*cache.keys, *cache.values):
        assert tensor[:, :, 0, 0].flatten().tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 8, 9, 10, 11]


def test_a_buffer_of_no_blocks_takes_no_memory():
    cache = PagedCache(
        [LayerGeometry(4, 2, 3, 3, None)], 2, PAGE, dtype=torch.float32, device=torch.device("cpu")
    )
    cache.add_host_blocks(0)
    assert sum(tensor.numel() for tensor in cache._host_tensors) == 0
