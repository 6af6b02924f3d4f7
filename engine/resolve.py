"""From what a user set to the numbers the engine runs with, once, each with its reason.

Pure but for asking how much memory there is. Runs on the caller's thread, when a manager is built:
a setting that cannot be honoured is refused here, by name, before anything is allocated.
"""

from dataclasses import dataclass

import torch

from engine.attention.select_backend import BackendChoice, choose_backend
from engine.cache.sizing import available_bytes, bytes_per_block, num_blocks_that_fit
from engine.config import ContinuousBatchingConfig, WorkloadHints
from engine.config_checks import check_config
from engine.errors import CacheTooSmallError
from engine.models.causal_lm import CausalLM
from engine.models.probe import ModelGeometry

MAX_REQUESTS_PER_BATCH = 1024
# A step of this many prompt tokens delays every running stream by its length. Source: a 135M model
# prefills some 300 tokens a second and core, so 256 keep the delay near half a second.
CPU_BATCH_TOKENS = 256
GPU_BATCH_TOKENS = 8192
CPU_MEMORY_FRACTION = 0.6
GPU_MEMORY_FRACTION = 0.8
SAFETY_MARGINS = {"fifo": 0.15, "prefill_first": 0.0}


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The numbers an engine runs with; nothing is None but the seed.

    Attributes:
        page_size: Positions in a block.
        num_blocks: Blocks in the cache.
        max_batch_tokens: Tokens in a step.
        max_requests_per_batch: Requests that may run at once.
        max_model_tokens: Positions one request may use, prompt and answer together.
        num_reserved_blocks: Blocks that new requests leave free while others run.
        max_queue_size: Requests that may wait for their first step; 0 is unlimited.
        allow_block_sharing: Whether equal prefixes share blocks.
        scheduler_type: Which scheduler.
        return_logprobs: Whether each token's log-probability is reported.
        seed: Seed that unseeded requests derive theirs from; None draws at random.
        cache_bytes: Size of the cache when full, in bytes.
        attention: The attention backend.
        reasons: Field -> why it has this value.
    """

    page_size: int
    num_blocks: int
    max_batch_tokens: int
    max_requests_per_batch: int
    max_model_tokens: int
    num_reserved_blocks: int
    max_queue_size: int
    allow_block_sharing: bool
    scheduler_type: str
    return_logprobs: bool
    seed: int | None
    cache_bytes: int
    attention: BackendChoice
    reasons: dict[str, str]

    def describe(self) -> list[tuple[str, str, str]]:
        """Return (name, value, reason) of each number, for people."""
        values = {
            "page_size": f"{self.page_size} tokens",
            "num_blocks": f"{self.num_blocks} ({self.num_blocks * self.page_size:,} tokens)",
            "cache_bytes": f"{self.cache_bytes / 2**30:.2f} GiB",
            "max_batch_tokens": f"{self.max_batch_tokens} tokens",
            "max_requests_per_batch": str(self.max_requests_per_batch),
            "max_model_tokens": f"{self.max_model_tokens} tokens",
            "num_reserved_blocks": str(self.num_reserved_blocks),
            "max_queue_size": str(self.max_queue_size or "unlimited"),
            "allow_block_sharing": str(self.allow_block_sharing),
            "scheduler_type": self.scheduler_type,
            "return_logprobs": str(self.return_logprobs),
            "seed": "random" if self.seed is None else str(self.seed),
            "attention": self.attention.name,
        }
        return [(name, value, self.reasons.get(name, "as set")) for name, value in values.items()]


def resolve_config(
    config: ContinuousBatchingConfig,
    hints: WorkloadHints,
    model: CausalLM,
    geometry: ModelGeometry,
) -> ResolvedConfig:
    """Give every open setting a value that fits this model and this machine.

    Raises:
        UnsupportedConfigError: A field's value is out of range, or asks for what is not there.
        CacheTooSmallError: The memory holds fewer than two blocks, or not num_blocks of them.
    """
    check_config(config, model.device)
    reasons: dict[str, str] = {}
    max_batch_tokens = _resolve_batch_tokens(config, model.device, reasons)
    max_requests = _resolve_requests(config, hints, max_batch_tokens, reasons)
    block_bytes = bytes_per_block(geometry.layers, config.page_size, model.dtype)
    reserved = _step_bytes(model, max_batch_tokens, max_requests)
    num_blocks = _resolve_blocks(config, model, block_bytes, reserved, reasons)
    attention = choose_backend(
        model.device,
        model.dtype,
        config.page_size,
        allow_flash=config.auto_switch_to_flash,
        has_sinks=geometry.has_sinks,
        use_kernels=model.use_kernels,
    )
    reasons["attention"] = attention.reason
    reasons["cache_bytes"] = f"{block_bytes:,} bytes a block"
    return ResolvedConfig(
        page_size=config.page_size,
        num_blocks=num_blocks,
        max_batch_tokens=max_batch_tokens,
        max_requests_per_batch=max_requests,
        max_model_tokens=_resolve_model_tokens(model, num_blocks * config.page_size, reasons),
        num_reserved_blocks=_resolve_reserve(config, num_blocks, reasons),
        max_queue_size=config.max_queue_size,
        allow_block_sharing=config.allow_block_sharing,
        scheduler_type=config.scheduler_type,
        return_logprobs=config.return_logprobs,
        seed=config.seed,
        cache_bytes=num_blocks * block_bytes,
        attention=attention,
        reasons=reasons,
    )


def _resolve_batch_tokens(
    config: ContinuousBatchingConfig, device: torch.device, reasons: dict[str, str]
) -> int:
    if config.max_batch_tokens is not None:
        return config.max_batch_tokens
    reasons["max_batch_tokens"] = f"default on {device.type}"
    return CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS


def _resolve_requests(
    config: ContinuousBatchingConfig,
    hints: WorkloadHints,
    max_batch_tokens: int,
    reasons: dict[str, str],
) -> int:
    wanted = config.max_requests_per_batch
    if wanted is None:
        wanted = MAX_REQUESTS_PER_BATCH
        reasons["max_requests_per_batch"] = "default"
        if 0 < hints.num_requests < wanted:
            wanted = hints.num_requests
            reasons["max_requests_per_batch"] = "as many as the workload hints name"
    if wanted > max_batch_tokens:
        reasons["max_requests_per_batch"] = "each needs at least one of max_batch_tokens"
    return min(wanted, max_batch_tokens)


def _resolve_blocks(
    config: ContinuousBatchingConfig,
    model: CausalLM,
    block_bytes: int,
    reserved: int,
    reasons: dict[str, str],
) -> int:
    free = available_bytes(model.device)
    if config.num_blocks is not None:
        if config.num_blocks * block_bytes > free:
            raise CacheTooSmallError(
                f"num_blocks is {config.num_blocks}, which takes "
                f"{config.num_blocks * block_bytes:,} bytes, but {free:,} are available; lower it "
                "or leave it out"
            )
        return config.num_blocks
    fraction = config.max_memory_percent
    if fraction is None:
        on_cpu = model.device.type == "cpu"
        fraction = CPU_MEMORY_FRACTION if on_cpu else GPU_MEMORY_FRACTION
    reasons["num_blocks"] = f"{fraction:.0%} of {free / 2**30:.1f} GiB available"
    return num_blocks_that_fit(free, reserved, block_bytes, fraction)


def _resolve_reserve(
    config: ContinuousBatchingConfig, num_blocks: int, reasons: dict[str, str]
) -> int:
    margin = config.safety_margin
    if margin is None:
        margin = SAFETY_MARGINS[config.scheduler_type]
        reasons["num_reserved_blocks"] = f"{margin:.0%} of the blocks, {config.scheduler_type}"
    return int(margin * num_blocks)


def _resolve_model_tokens(model: CausalLM, cache_tokens: int, reasons: dict[str, str]) -> int:
    limit = model.max_model_tokens
    if limit is not None and limit <= cache_tokens:
        reasons["max_model_tokens"] = "the model's positions"
        return limit
    reasons["max_model_tokens"] = "what the cache holds"
    return cache_tokens


def _step_bytes(model: CausalLM, max_batch_tokens: int, max_requests: int) -> int:
    """Return what a step needs beside weights and cache, in bytes.

    Logits in the model's dtype, in fp32 and once more for processing; activations of one layer:
    hidden states, queries, keys, values and the widened MLP, each about twice.
    """
    config = model.text_config
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    widened = int(getattr(config, "intermediate_size", 0) or 4 * hidden)
    logits = max_requests * model.vocab_size * (model.dtype.itemsize + 8)
    activations = max_batch_tokens * (8 * hidden + 3 * widened) * model.dtype.itemsize
    return logits + activations
