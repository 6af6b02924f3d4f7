"""Our kernels store the rows that plain torch would, bit for bit, where their slots say."""

import pytest
import torch

from engine.cache.block_memory import BlockShape, allocate_layers
from engine.cache.row_formats import encode_rows, row_width
from engine.kernels.cpu.kv_rows import KV_FORMATS, store_kv_rows

CPU = torch.device("cpu")
PAGE = 4


def numbers_of(width: int) -> torch.Tensor:
    """Return [T, 2, W] of every size that a float32 has, and of those that are not finite."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(40, 2, width, generator=generator)
    numbers *= 10.0 ** torch.randint(-12, 9, (40, 2, 1), generator=generator)
    numbers[3] *= torch.rand(2, width, generator=generator) * 1e-7
    numbers[5] = 0.0
    numbers[6] = 1e-39
    numbers[7, 0, 0] = float("nan")
    numbers[8, 1, width - 1] = float("inf")
    numbers[9, 0, 0] = -float("inf")
    numbers[10, 1] = 3e38
    # Halves of the last place, which go to the even neighbour, and what fp16 has no exponent for.
    numbers[11] = torch.arange(width) * 2.0**-8 + 1.0
    numbers[12] = torch.arange(width) * 2.0**-12 + 1.0
    numbers[13] = torch.arange(width) * 2.0**-25
    numbers[14] = -torch.arange(width) * 2.0**-26 - 2.0**-14
    return numbers


def blocks_of(shape: tuple[int, int, int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return blocks in which other rows lie between those of two heads."""
    num_blocks, page_size, num_heads, width = shape
    layer = BlockShape(num_heads, width, width + 1)
    [(keys, _)] = allocate_layers(
        [layer], num_blocks, page_size, dtype=dtype, device=CPU, heads_first=True
    )
    return keys


@pytest.mark.parametrize("width", [1, 3, 16, 20, 64])
@pytest.mark.parametrize("dtype", KV_FORMATS)
def test_rows_are_those_of_torch(library, dtype, width):
    numbers = numbers_of(width)
    shape = (12, PAGE, 2, row_width(width, dtype))
    cached = blocks_of(shape, dtype).zero_()
    slots = torch.randperm(12 * PAGE, generator=torch.Generator().manual_seed(1))[: len(numbers)]
    store_kv_rows(library, numbers, cached, slots)
    expected = torch.zeros(shape, dtype=dtype)
    expected[slots // PAGE, slots % PAGE] = encode_rows(numbers, dtype)
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    same = cached.contiguous().view(integers) == expected.view(integers)
    # There are many ways to be no number.
    both_nan = cached.float().isnan() & expected.float().isnan()
    if dtype == torch.int8:
        found, wanted = (rows[..., width:].contiguous() for rows in (cached, expected))
        nan = found.view(torch.float32).isnan() & wanted.view(torch.float32).isnan()
        both_nan[..., width:] |= nan
    assert (same | both_nan).all()


@pytest.mark.parametrize("dtype", KV_FORMATS)
def test_numbers_may_lie_apart(library, dtype):
    numbers = numbers_of(16)[:8]
    shape = (2, PAGE, 2, row_width(16, dtype))
    slots = torch.arange(8)
    rows = []
    # As a model hands them over, in one piece, and with each head's numbers apart.
    for layout in ((1, 0, 2), (0, 1, 2), (2, 0, 1)):
        inverse = [layout.index(axis) for axis in range(3)]
        strided = numbers.permute(layout).contiguous().permute(inverse)
        cached = blocks_of(shape, dtype)
        store_kv_rows(library, strided, cached, slots)
        rows.append(cached.contiguous().view(torch.int8))
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
