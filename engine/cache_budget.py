"""How much memory the cache may take, and how many blocks that is, on the device and on the host.

Pure but for asking how much memory there is. Runs with `resolve`, of which it is a part.
"""

import logging
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from engine.cache.sizing import (
    available_bytes,
    num_blocks_that_fit,
    num_host_blocks_that_fit,
)
from engine.config import ContinuousBatchingConfig
from engine.errors import CacheTooSmallError
from engine.kernels.cpu.linear import PANEL
from engine.models.causal_lm import CausalLM

logger = logging.getLogger(__name__)

# On a CPU the cache shares the memory with everything else. On a GPU processing logits takes
# temporary tensors of the vocabulary's width. Source: the documented engine's defaults.
CPU_MEMORY_FRACTION = 0.6
GPU_MEMORY_FRACTION = 0.9
GPU_MEMORY_FRACTION_WITH_PROCESSING = 0.8

# Rows that a thread gathers at a time; kMaxTileRows in any_linear.h.
TILE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """What the cache may be made of, in bytes.

    Attributes:
        available: What the process may still take.
        fraction: Share of it that the cache and a step's tensors may take, unless the number of
            blocks is given and this is not.
        block: Size of one block.
        reserved: What a step needs beside the cache.
    """

    available: int
    fraction: float
    block: int
    reserved: int


def resolve_memory(
    config: ContinuousBatchingConfig,
    model: CausalLM,
    block: int,
    reserved: int,
    *,
    processes_logits: bool,
) -> Memory:
    """Ask how much memory there is, and say what is to be made of it.

    Args:
        config: What the user set.
        model: The model, whose device the cache lies on.
        block: Size of one block, in bytes.
        reserved: What a step needs beside the cache, in bytes.
        processes_logits: Whether a request that says nothing processes its logits.
    """
    fraction = _resolve_fraction(config, model.device, processes_logits=processes_logits)
    return Memory(available_bytes(model.device), fraction, block, reserved)


def _resolve_fraction(
    config: ContinuousBatchingConfig, device: torch.device, *, processes_logits: bool
) -> float:
    if config.max_memory_percent is not None:
        return config.max_memory_percent
    if device.type == "cpu":
        return CPU_MEMORY_FRACTION
    if processes_logits or config.per_request_processors:
        return GPU_MEMORY_FRACTION_WITH_PROCESSING
    return GPU_MEMORY_FRACTION


def resolve_blocks(
    config: ContinuousBatchingConfig, memory: Memory, reasons: dict[str, str]
) -> int:
    """Return the number of blocks: the one that is set if the memory allows it, or what fits.

    Args:
        config: What the user set.
        memory: What the cache may be made of.
        reasons: Takes a reason for what was not set.

    Raises:
        CacheTooSmallError: The memory holds fewer than two blocks, or not num_blocks of them, or
            max_memory_percent of it does not.
    """
    reasons["cache_bytes"] = f"{memory.block:,} bytes a block"
    wanted = config.num_blocks
    if wanted is None:
        reasons["num_blocks"] = (
            f"{memory.fraction:.0%} of {memory.available / 2**30:.1f} GiB available"
        )
        return num_blocks_that_fit(memory.available, memory.reserved, memory.block, memory.fraction)
    needed = wanted * memory.block
    if needed > memory.available:
        raise CacheTooSmallError(
            f"num_blocks is {wanted}, which takes {needed:,} bytes, but {memory.available:,} are "
            "available; lower it or leave it out"
        )
    if config.max_memory_percent is not None:
        allowed = int(memory.available * memory.fraction)
        if needed + memory.reserved > allowed:
            raise CacheTooSmallError(
                f"num_blocks is {wanted}, which takes {needed:,} bytes and a step "
                f"{memory.reserved:,} more, but max_memory_percent is {memory.fraction:g}, which "
                f"allows {allowed:,} of the {memory.available:,} available; lower the one, raise "
                "the other, or set only one of them"
            )
        reasons["num_blocks"] = f"as set; within {memory.fraction:.0%} of the memory available"
    return wanted


def resolve_host_blocks(
    config: ContinuousBatchingConfig,
    model: CausalLM,
    num_blocks: int,
    block_bytes: int,
    reasons: dict[str, str],
) -> int:
    """Return how many blocks on the host preempted requests are swapped to.

    Args:
        config: What the user set.
        model: The model, whose device the cache lies on.
        num_blocks: Blocks in the cache.
        block_bytes: Size of one block, in bytes.
        reasons: Takes a reason for what was not set.
    """
    space = config.cpu_offload_space
    if space == 0:
        return 0
    left = available_bytes(torch.device("cpu"))
    if model.device.type == "cpu":
        left -= num_blocks * block_bytes  # the cache takes its part of the same memory
    threshold = config.cpu_offload_space_safety_threshold
    wanted = num_blocks if space is None else int(space * 2**30) // block_bytes
    if space is not None and threshold == 1.0:
        return wanted
    allowed = num_host_blocks_that_fit(left, block_bytes, threshold)
    if allowed < wanted:
        reasons["num_host_blocks"] = f"{threshold:.0%} of {max(left, 0) / 2**30:.1f} GiB left"
        if space is not None:
            logger.warning("cpu_offload_space is cut from %d to %d blocks", wanted, allowed)
    elif space is None:
        reasons["num_host_blocks"] = "as many as in the cache"
    return min(allowed, wanted)


def step_bytes(model: CausalLM, max_batch_tokens: int, max_rows: int) -> int:
    """Return what a step needs beside weights and cache, in bytes.

    Logits of at most so many rows in the model's dtype, in fp32 and once more for processing;
    activations of one layer: hidden states, queries, keys, values and the widened MLP, each about
    twice; of a mixture of experts, each of those that a row goes to; a tile or two for each thread.
    """
    config = model.text_config
    hidden = _width(config, "hidden_size")
    widened = _width(config, "intermediate_size") or 4 * hidden
    logits = min(max_batch_tokens, max_rows) * model.vocab_size * (model.dtype.itemsize + 8)
    numbers = 8 * hidden + 3 * widened + _mixture_numbers(config, hidden, widened)
    tiles = 2 * TILE_ROWS * hidden * torch.get_num_threads()
    return logits + (max_batch_tokens * numbers + tiles) * model.dtype.itemsize


def _mixture_numbers(config: PretrainedConfig, hidden: int, widened: int) -> int:
    """Return how many numbers a mixture of experts takes for each row; see mixture.cpp.

    For each expert that the row goes to: what goes in, packed, and again where tiles are filled up;
    gate, up, and what they let pass; what comes out. Besides, the router's logits, and 32 sums that
    each thread keeps.
    """
    chosen = _width(config, "num_experts_per_tok")
    if chosen == 0:
        return 0
    shared = _width(config, "shared_expert_intermediate_size")
    width = max(_width(config, "moe_intermediate_size") or widened, shared)
    each = 2 * max(hidden, width) + 3 * width + hidden
    experts = _width(config, "num_experts") or _width(config, "num_local_experts")
    return (chosen + (shared > 0)) * each + experts + 1 + PANEL * torch.get_num_threads()


def _width(config: PretrainedConfig, name: str) -> int:
    """Return a number of a configuration, 0 if it has none; of one for each layer the largest."""
    value = getattr(config, name, None) or 0
    return max(value) if isinstance(value, list | tuple) else int(value)
