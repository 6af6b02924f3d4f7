"""From bytes to blocks: how much memory there is and how many blocks of a model it holds.

Pure arithmetic but for `available_host_bytes`, which asks the operating system. Runs once, when an
engine is assembled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from engine.cache.row_formats import row_width
from engine.errors import CacheTooSmallError

CGROUP_ROOT = Path("/sys/fs/cgroup")
MIN_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """What one attention layer keeps per position, and how it looks at it.

    Attributes:
        num_query_heads: Query heads H.
        num_kv_heads: Key and value heads Hkv; H is a multiple of it.
        key_dim: Width of a key head.
        value_dim: Width of a value head.
        sliding_window: Positions a query sees, itself included; None sees all before it.
    """

    num_query_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    sliding_window: int | None


def bytes_per_block(layers: Sequence[LayerGeometry], page_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of one block: a page of keys and values for every layer.

    Args:
        layers: What each keeps per position.
        page_size: Positions in a block.
        dtype: Of the rows, see `row_formats`.
    """
    elements = sum(
        layer.num_kv_heads * (row_width(layer.key_dim, dtype) + row_width(layer.value_dim, dtype))
        for layer in layers
    )
    return elements * page_size * dtype.itemsize


def num_blocks_that_fit(
    available_bytes: int, reserved_bytes: int, block_bytes: int, fraction: float
) -> int:
    """Return how many blocks fit in the memory left after the weights.

    Args:
        available_bytes: Memory the process may still take, in bytes.
        reserved_bytes: What a step needs beside the cache: logits and activations, in bytes.
        block_bytes: Size of one block, in bytes.
        fraction: Share of the memory that cache and reserve may take, 0 < fraction <= 1.

    Raises:
        CacheTooSmallError: Fewer than two blocks fit.
    """
    num_blocks = int(available_bytes * fraction - reserved_bytes) // block_bytes
    if num_blocks < MIN_BLOCKS:
        raise CacheTooSmallError(
            f"the cache needs at least {MIN_BLOCKS} blocks of {block_bytes:,} bytes, but "
            f"{available_bytes:,} bytes are available, of which {fraction:.0%} may be used and "
            f"{reserved_bytes:,} are kept for a step; free memory, lower page_size or "
            f"max_batch_tokens, or raise max_memory_percent"
        )
    return num_blocks


def num_host_blocks_that_fit(left_bytes: int, block_bytes: int, threshold: float) -> int:
    """Return how many blocks the buffer for swapped requests may have.

    Args:
        left_bytes: Host memory left beside the cache, in bytes.
        block_bytes: Size of one block, in bytes.
        threshold: Share of that memory that the buffer may take.
    """
    return max(0, int(left_bytes * threshold)) // block_bytes


def available_bytes(device: torch.device) -> int:
    """Return the memory that this process may still take on a device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_host_bytes()


def available_host_bytes(cgroup_root: Path = CGROUP_ROOT) -> int:
    """Return the host memory that this process may still take, in bytes.

    The smaller of what the machine has available and what the control group allows. Pages of the
    file cache count as available, since the kernel gives them up before it kills.
    """
    available = int(psutil.virtual_memory().available)
    limit = _cgroup_headroom(cgroup_root)
    return available if limit is None else min(available, limit)


def _cgroup_headroom(root: Path) -> int | None:
    """Return limit - usage + file cache of the control group, v2 or v1; None without a limit."""
    for folder, limit_name, usage_name, cache_key in (
        (root, "memory.max", "memory.current", "inactive_file"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit_text = (folder / limit_name).read_text().strip()
            usage = int((folder / usage_name).read_text())
            statistics = (folder / "memory.stat").read_text()
        except (OSError, ValueError):
            continue
        # v2 writes "max", v1 a number near 2^63 where there is no limit.
        if limit_text == "max" or int(limit_text) >= 1 << 60:
            return None
        fields = dict(line.split(" ", 1) for line in statistics.splitlines() if " " in line)
        return max(0, int(limit_text) - usage + int(fields.get(cache_key, 0)))
    return None
