"""Memory for blocks: its shape, its order, and that a large one is mapped."""

import mmap
import re
from pathlib import Path

import pytest
import torch

from engine.cache.block_memory import MIN_MAPPED_BYTES, allocate_blocks

CPU = torch.device("cpu")


@pytest.mark.parametrize("num_blocks", [0, 3, MIN_MAPPED_BYTES // 64])
def test_heads_lie_first_or_last(num_blocks):
    shape = (num_blocks, 4, 3, 5)
    last = allocate_blocks(shape, dtype=torch.float32, device=CPU)
    first = allocate_blocks(shape, dtype=torch.float32, device=CPU, heads_first=True)
    assert last.shape == first.shape == shape
    assert last.stride() == (60, 15, 5, 1)
    assert first.stride() == (60, 5, 20, 1)
    for blocks in (last, first):
        blocks.fill_(1.5)
        assert bool((blocks == 1.5).all())


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no large pages"
)
def test_large_memory_may_have_large_pages():
    blocks = allocate_blocks((1024, 16, 4, 64), dtype=torch.float32, device=CPU)
    assert "hg" in flags_of(blocks.data_ptr())


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
    blocks = allocate_blocks((1024, 16, 4, 64), dtype=torch.bfloat16, device=CPU)
    assert blocks.shape == (1024, 16, 4, 64)
    assert blocks.dtype == torch.bfloat16


def test_a_kernel_that_refuses_large_pages_is_no_failure(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345, raising=False)
    allocate_blocks((1024, 16, 4, 64), dtype=torch.float32, device=CPU).zero_()
