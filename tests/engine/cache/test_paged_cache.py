"""Slots of keys and values: what is written where, and what a copy takes along."""

import pytest
import torch

from engine.batch import BlockCopy
from engine.cache.paged_cache import PagedCache
from engine.cache.row_formats import encode_rows
from engine.cache.sizing import LayerGeometry

PAGE = 4
LAYERS = [LayerGeometry(4, 2, 3, 3, None), LayerGeometry(4, 1, 5, 2, 8)]


@pytest.fixture(params=[False, True], ids=["heads last", "heads first"])
def cache(request):
    cache = PagedCache(
        LAYERS,
        4,
        PAGE,
        dtype=torch.float32,
        device=torch.device("cpu"),
        heads_first=request.param,
    )
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.arange(16.0).view(4, PAGE, 1, 1).expand_as(tensor))
    return cache


def rows(tensor):
    """By slot."""
    return tensor.flatten(0, 1)


def test_each_layer_has_slots_of_its_own_shape(cache):
    assert [tuple(keys.shape) for keys in cache.keys] == [(4, PAGE, 2, 3), (4, PAGE, 1, 5)]
    assert [tuple(values.shape) for values in cache.values] == [(4, PAGE, 2, 3), (4, PAGE, 1, 2)]


def test_writing_touches_the_given_slots_of_one_layer_only(cache):
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    keys, values = torch.full((2, 2, 3), -1.0), torch.full((2, 2, 3), -2.0)
    cache.write(0, cache.locate(torch.tensor([7, 2])), keys, values)
    assert (rows(cache.keys[0])[[2, 7]] == -1).all()
    assert (rows(cache.values[0])[[2, 7]] == -2).all()
    others = [slot for slot in range(16) if slot not in (2, 7)]
    assert torch.equal(rows(cache.keys[0])[others], rows(before[0])[others])
    assert torch.equal(cache.keys[1], before[1])
    assert torch.equal(cache.values[1], before[3])


def test_writing_converts_to_the_dtype_of_the_cache(cache):
    half = torch.full((1, 2, 3), 0.5, dtype=torch.float16)
    cache.write(0, cache.locate(torch.tensor([0])), half, half)
    assert (cache.keys[0][0, 0] == 0.5).all()


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
def test_rows_are_written_and_copied_whole(dtype, heads_first):
    """The same rows whoever writes them, our kernel or torch, and what scales them goes along."""
    cpu = torch.device("cpu")
    cache = PagedCache(LAYERS, 4, PAGE, dtype=dtype, device=cpu, heads_first=heads_first)
    cache.add_host_blocks(1)
    keys, values = torch.randn(2, 1, 5), torch.randn(2, 1, 2)
    cache.write(1, cache.locate(torch.tensor([5, 6])), keys, values)
    cache.copy_blocks([BlockCopy(1, 4, 3), BlockCopy(4, 2, 3)])
    for tensor, numbers in ((cache.keys[1], keys), (cache.values[1], values)):
        for block in (1, 2):
            assert torch.equal(tensor[block, 1:3], encode_rows(numbers, dtype))


def test_a_copy_takes_the_leading_slots_of_every_layer(cache):
    cache.copy_blocks([BlockCopy(source=1, destination=3, num_slots=2)])
    for tensor in (*cache.keys, *cache.values):
        assert rows(tensor)[:, 0, 0].tolist() == [*range(12), 4, 5, 14, 15]


def test_copies_run_in_order(cache):
    """A source may be reused as the destination of a later copy of the same step."""
    cache.copy_blocks([BlockCopy(0, 1, PAGE), BlockCopy(2, 0, PAGE)])
    assert rows(cache.keys[0])[:8, 0, 0].tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
