"""From what a user set to the numbers the engine runs with, once, each with its reason.

Pure but for asking how much memory there is. Runs on the caller's thread, when a manager is built:
a setting that cannot be honoured is refused here, by name, before anything is allocated.
"""

import math
from dataclasses import dataclass

import torch
from transformers import CompileConfig

from engine.attention.select_backend import BackendChoice, choose_backend
from engine.cache.row_formats import choose_rows, dtype_name
from engine.cache.sizing import bytes_per_block
from engine.cache_budget import resolve_blocks, resolve_host_blocks, resolve_memory, step_bytes
from engine.config import ContinuousBatchingConfig, WorkloadHints
from engine.config_checks import check_config
from engine.models.causal_lm import CausalLM
from engine.models.probe import ModelGeometry
from engine.runners.compile_options import CompileOptions, choose_compile

MAX_REQUESTS_PER_BATCH = 1024
# A step of this many prompt tokens delays every running stream by its length. Source: a 135M model
# prefills some 300 tokens a second and core, so 256 keep the delay near half a second.
CPU_BATCH_TOKENS = 256
GPU_BATCH_TOKENS = 8192
SAFETY_MARGINS = {"fifo": 0.15, "prefill_first": 0.0, "priority": 0.15}
# Five tokens a second are about as slow as people read; a GPU can do better at little cost.
CPU_STEP_SECONDS = 0.2
GPU_STEP_SECONDS = 0.05
# Fields that are numbers already.
AS_SET = (
    "page_size", "max_draft_tokens", "thread_niceness", "max_queue_size", "allow_block_sharing",
    "scheduler_type", "return_logprobs", "seed",
)  # fmt: skip
# Width of the decode path's block table without a hint. Source: the documented engine's default.
BLOCKS_PER_REQUEST = 32


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The numbers an engine runs with; nothing is None but the seed.

    Attributes:
        page_size: Positions in a block.
        num_blocks: Blocks in the cache.
        max_batch_tokens: Tokens in a step.
        max_requests_per_batch: Requests that may run at once.
        max_blocks_per_request: Least width of a decoding batch's block table; 0 where every width
            is as good.
        max_model_tokens: Positions one request may use, prompt and answer together.
        num_reserved_blocks: Blocks that new requests leave free while others run.
        num_host_blocks: Blocks on the host that preempted requests are swapped to.
        step_time_target: Seconds a step may take while requests stream; 0 is unlimited.
        max_draft_tokens: Tokens that may be guessed for a request in a step; 0 guesses none.
        thread_niceness: How far the engine's thread stands back behind others; 0 not at all.
        max_queue_size: Requests that may wait for their first step; 0 is unlimited.
        allow_block_sharing: Whether equal prefixes share blocks.
        scheduler_type: Which scheduler.
        return_logprobs: Whether each token's log-probability is reported.
        seed: Seed that unseeded requests derive theirs from; None draws at random.
        cache_bytes: Size of the cache when full, in bytes.
        kv_cache_dtype: Of the rows that keys and values are kept in, see `cache.row_formats`.
        attention: The attention backend.
        varlen_compile: How batches of any kind are compiled; None is not at all.
        decode_compile: How batches are compiled in which every row computes one token; likewise.
        reasons: Field -> why it has this value.
    """

    page_size: int
    num_blocks: int
    max_batch_tokens: int
    max_requests_per_batch: int
    max_blocks_per_request: int
    max_model_tokens: int
    num_reserved_blocks: int
    num_host_blocks: int
    step_time_target: float
    max_draft_tokens: int
    thread_niceness: int
    max_queue_size: int
    allow_block_sharing: bool
    scheduler_type: str
    return_logprobs: bool
    seed: int | None
    cache_bytes: int
    kv_cache_dtype: torch.dtype
    attention: BackendChoice
    varlen_compile: CompileOptions | None
    decode_compile: CompileOptions | None
    reasons: dict[str, str]

    def describe(self) -> list[tuple[str, str, str]]:
        """Return (name, value, reason) of each number, for people."""
        values = {
            "page_size": f"{self.page_size} tokens",
            "num_blocks": f"{self.num_blocks} ({self.num_blocks * self.page_size:,} tokens)",
            "cache_bytes": f"{self.cache_bytes / 2**30:.2f} GiB",
            "max_batch_tokens": f"{self.max_batch_tokens} tokens",
            "max_requests_per_batch": str(self.max_requests_per_batch),
            "max_blocks_per_request": str(self.max_blocks_per_request),
            "max_model_tokens": f"{self.max_model_tokens} tokens",
            "num_reserved_blocks": str(self.num_reserved_blocks),
            "num_host_blocks": str(self.num_host_blocks),
            "step_time_target": f"{self.step_time_target:g} s"
            if self.step_time_target
            else "unlimited",
            "max_draft_tokens": str(self.max_draft_tokens),
            "thread_niceness": str(self.thread_niceness),
            "max_queue_size": str(self.max_queue_size or "unlimited"),
            "allow_block_sharing": str(self.allow_block_sharing),
            "scheduler_type": self.scheduler_type,
            "return_logprobs": str(self.return_logprobs),
            "seed": "random" if self.seed is None else str(self.seed),
            "kv_cache_dtype": dtype_name(self.kv_cache_dtype),
            "attention": self.attention.name,
            "varlen_compile": self.varlen_compile.describe() if self.varlen_compile else "no",
            "decode_compile": self.decode_compile.describe() if self.decode_compile else "no",
        }
        return [(name, value, self.reasons.get(name, "as set")) for name, value in values.items()]


def resolve_config(
    config: ContinuousBatchingConfig,
    hints: WorkloadHints,
    model: CausalLM,
    geometry: ModelGeometry,
    *,
    processes_logits: bool = False,
    fallback_compile: CompileConfig | None = None,
) -> ResolvedConfig:
    """Give every open setting a value that fits this model and this machine.

    Args:
        config: What the user set.
        hints: What is known of the work to come.
        model: The model.
        geometry: Its attention layers.
        processes_logits: Whether a request that says nothing processes its logits.
        fallback_compile: How to compile where the configuration does not say.

    Raises:
        UnsupportedConfigError: A field's value is out of range, or asks for what is not there.
        CacheTooSmallError: The memory holds fewer than two blocks, or not num_blocks of them, or
            max_memory_percent of it does not.
    """
    check_config(config, model.device)
    reasons: dict[str, str] = {}
    max_batch_tokens = _resolve_batch_tokens(config, model.device, reasons)
    max_requests = _resolve_requests(config, hints, max_batch_tokens, reasons)
    reserved = step_bytes(model, max_batch_tokens, max_requests * (1 + config.max_draft_tokens))
    rows = _resolve_rows(config, model, reasons)
    block = bytes_per_block(geometry.layers, config.page_size, rows)
    memory = resolve_memory(config, model, block, reserved, processes_logits=processes_logits)
    num_blocks = resolve_blocks(config, memory, reasons)
    attention = _resolve_attention(config, model, geometry, reasons)
    return ResolvedConfig(
        **{name: getattr(config, name) for name in AS_SET},
        num_blocks=num_blocks,
        max_batch_tokens=max_batch_tokens,
        max_requests_per_batch=max_requests,
        max_blocks_per_request=_resolve_table_width(config, hints, attention, reasons),
        max_model_tokens=_resolve_model_tokens(model, num_blocks * config.page_size, reasons),
        num_reserved_blocks=_resolve_reserve(config, num_blocks, reasons),
        num_host_blocks=resolve_host_blocks(config, model, num_blocks, memory.block, reasons),
        step_time_target=_resolve_step_time(config, model.device, reasons),
        cache_bytes=num_blocks * memory.block,
        kv_cache_dtype=rows,
        attention=attention,
        varlen_compile=choose_compile("varlen", config, fallback_compile, reasons),
        decode_compile=choose_compile("decode", config, fallback_compile, reasons),
        reasons=reasons,
    )


def _resolve_rows(
    config: ContinuousBatchingConfig, model: CausalLM, reasons: dict[str, str]
) -> torch.dtype:
    if config.kv_cache_dtype != "auto":
        return choose_rows(config.kv_cache_dtype, model.dtype, model.device)
    if model.has_int8_activations:
        # 5e-7 nats beside their 3e-3 (docs/quantisation.md), and a batch reads half as much.
        reasons["kv_cache_dtype"] = "activations of 8 bits lose far more than it does"
        return torch.float16
    reasons["kv_cache_dtype"] = "the model's own"
    return model.dtype


def _resolve_attention(
    config: ContinuousBatchingConfig,
    model: CausalLM,
    geometry: ModelGeometry,
    reasons: dict[str, str],
) -> BackendChoice:
    choice = choose_backend(
        model.device,
        model.dtype,
        config.page_size,
        allow_flash=config.auto_switch_to_flash,
        has_sinks=geometry.has_sinks,
        use_kernels=model.use_kernels,
    )
    reasons["attention"] = choice.reason
    return choice


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


def _resolve_reserve(
    config: ContinuousBatchingConfig, num_blocks: int, reasons: dict[str, str]
) -> int:
    margin = config.safety_margin
    if margin is None:
        margin = SAFETY_MARGINS[config.scheduler_type]
        reasons["num_reserved_blocks"] = f"{margin:.0%} of the blocks, {config.scheduler_type}"
    return int(margin * num_blocks)


def _resolve_step_time(
    config: ContinuousBatchingConfig, device: torch.device, reasons: dict[str, str]
) -> float:
    if config.step_time_target is not None:
        return float(config.step_time_target)
    reasons["step_time_target"] = f"default on {device.type}"
    return CPU_STEP_SECONDS if device.type == "cpu" else GPU_STEP_SECONDS


def _resolve_table_width(
    config: ContinuousBatchingConfig,
    hints: WorkloadHints,
    attention: BackendChoice,
    reasons: dict[str, str],
) -> int:
    if attention.name != "flash":
        reasons["max_blocks_per_request"] = f"{attention.name} attention takes tables of any width"
        return 0
    if config.max_blocks_per_request is not None:
        return config.max_blocks_per_request
    longest = hints.max_prompt_length + hints.max_generated_length
    if longest == 0:
        reasons["max_blocks_per_request"] = "default"
        return BLOCKS_PER_REQUEST
    reasons["max_blocks_per_request"] = "the longest request of the workload hints"
    num_blocks = math.ceil(longest / config.page_size) + 1
    return num_blocks + num_blocks % 2


def _resolve_model_tokens(model: CausalLM, cache_tokens: int, reasons: dict[str, str]) -> int:
    limit = model.max_model_tokens
    if limit is not None and limit <= cache_tokens:
        reasons["max_model_tokens"] = "the model's positions"
        return limit
    reasons["max_model_tokens"] = "what the cache holds"
    return cache_tokens
