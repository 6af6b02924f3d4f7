"""Memory for blocks: its shape, its order, and that a large one is mapped."""

import mmap
import re
from pathlib import Path

import psutil
import pytest
import torch

from engine.cache.block_memory import MIN_MAPPED_BYTES, BlockShape, allocate_layers

CPU = torch.device("cpu")


SHAPES = [BlockShape(3, 5, 5), BlockShape(2, 8, 4), BlockShape(1, 7, 2)]


def allocate(num_blocks, shapes=SHAPES, page_size=4, dtype=torch.float32, heads_first=True):
    return allocate_layers(
        shapes, num_blocks, page_size, dtype=dtype, device=CPU, heads_first=heads_first
    )


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("num_blocks", [0, 3, MIN_MAPPED_BYTES // 256])
def test_every_row_has_memory_of_its_own(num_blocks, heads_first):
    layers = allocate(num_blocks, heads_first=heads_first)
    tensors = [tensor for pair in layers for tensor in pair]
    widths = [width for shape in SHAPES for width in (shape.key_width, shape.value_width)]
    heads = [shape.num_heads for shape in SHAPES for _ in range(2)]
    assert [tensor.shape for tensor in tensors] == [
        (num_blocks, 4, count, width) for count, width in zip(heads, widths, strict=True)
    ]
    for index, tensor in enumerate(tensors):
        numbers = torch.arange(tensor.numel()).view(tensor.shape)
        tensor.copy_(numbers % 1000 + 1000 * index)
    for index, tensor in enumerate(tensors):
        numbers = torch.arange(tensor.numel()).view(tensor.shape)
        assert torch.equal(tensor.long(), numbers % 1000 + 1000 * index)


def test_heads_last_is_one_run_of_rows():
    keys, values = allocate(3, heads_first=False)[0]
    assert keys.is_contiguous()
    assert values.is_contiguous()


def test_heads_first_is_read_from_one_end_to_the_other():
    """Block by block: the layers, in each the heads, in each its keys and then its values."""
    layers = allocate(2)
    addresses = []
    for block in range(2):
        for keys, values in layers:
            for head in range(keys.shape[2]):
                for tensor in (keys, values):
                    row = tensor[block, :, head]
                    assert row.is_contiguous()
                    addresses.append((row.data_ptr(), row.numel() * row.itemsize))
    ends = [address + size for address, size in addresses]
    begins = [address for address, _ in addresses[1:]]
    gaps = [begin - end for end, begin in zip(ends, begins, strict=False)]
    assert all(gap == 0 for index, gap in enumerate(gaps) if index != len(gaps) // 2)
    assert 0 <= gaps[len(gaps) // 2] < 64
    assert addresses[0][0] % 64 == addresses[len(addresses) // 2][0] % 64 == 0


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no large pages"
)
def test_large_memory_may_have_large_pages():
    blocks = allocate(1024, [BlockShape(4, 64, 64)])[0][0]
    assert "hg" in flags_of(blocks.data_ptr())


def test_memory_that_is_not_written_is_not_taken():
    """The blocks in use lie side by side, whatever the layers."""
    layers = allocate(1000, [BlockShape(4, 64, 64)] * 32)
    before = resident_bytes()
    for keys, values in layers:
        keys[:2].zero_()
        values[:2].zero_()
    used = 2 * sum(tensor[0].numel() * 4 for pair in layers for tensor in pair)
    assert resident_bytes() - before < used + (8 << 20)


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def flags_of(address: int) -> list[str]:
    """What the kernel says of the mapping that an address lies in."""
    mapping = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if bounds := re.fullmatch(r"([0-9a-f]+)-([0-9a-f]+)", words[0]):
            low, high = (int(bound, 16) for bound in bounds.groups())
            mapping = low <= address < high
        elif mapping and words[0] == "VmFlags:":
            return words[1:]
    return []


def test_where_large_pages_are_unknown_the_memory_is_ordinary(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    blocks, _ = allocate(1024, [BlockShape(4, 64, 64)], 16, torch.bfloat16)[0]
    assert blocks.shape == (1024, 16, 4, 64)
    assert blocks.dtype == torch.bfloat16


def test_a_kernel_that_refuses_large_pages_is_no_failure(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345, raising=False)
    allocate(1024, [BlockShape(4, 64, 64)])[0][0].zero_()
