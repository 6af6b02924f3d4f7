"""`ContinuousBatchingConfig`: what a user may set, with the documented names and defaults.

Values only. What a None becomes on a given model and machine is decided once, in `resolve.py`.
Fields whose feature does not exist yet, or needs hardware that is absent, are refused there by
name; none is ever ignored.
"""

import warnings
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar


@dataclass
class ContinuousBatchingConfig:
    """Settings of the continuous-batching engine.

    Attributes:
        page_size: Positions per page (one layer) and so per block (all layers), at least 4.
        num_blocks: Blocks in the cache; None takes what fits in memory. Beside max_memory_percent
            it is the size, and refused if it is more than that share.
        max_batch_tokens: Tokens computed in one step; None: 256 on a CPU, 8192 on a GPU.
        max_memory_percent: Share (0, 1] of the free memory for the cache, despite its name; None:
            0.6 on a CPU, else 0.8 with logit processing (per_request_processors, or a generation
            configuration that asks for some) and 0.9 without.
        max_requests_per_batch: Requests in one step; None: the workload hint, at most 1024.
        max_blocks_per_request: Width of the block table of flash-attn's decode path; wider batches
            take the general one. 0 turns it off, as does any device without it; None: the workload
            hint, else 32.
        allow_block_sharing: Whether equal prefixes share blocks.
        use_async_batching: Overlap preparing a step with running the previous one.
        use_cuda_graph: CUDA graphs for the varlen and the decode path.
        q_padding_interval_size: Query padding under CUDA graphs, in tokens; 0 takes the preset.
        kv_padding_interval_size: Key padding under CUDA graphs, in tokens; 0 takes the preset.
        varlen_compile_config: How to compile the varlen path.
        decode_compile_config: How to compile the decode path.
        default_compile_level: 0 to 3: compile with preset configurations.
        scheduler_type: "fifo", "prefill_first" or "priority"; with the last, requests take a
            `priority`, of which the lower goes first.
        safety_margin: Share [0, 1) of the blocks kept free of new requests while others run; None:
            0 for prefill_first, else 0.15.
        return_logprobs: Report the log-probability of each generated token.
        seed: Seed that requests without one derive theirs from; None draws at random.
        auto_switch_to_flash: Use flash-attn on a GPU where it is installed.
        cpu_offload_space: GiB of host memory to swap preempted requests to; 0 recomputes them; None
            takes as much as the threshold allows, at most the size of the cache.
        cpu_offload_space_safety_threshold: Share (0, 1] of the host memory left beside the cache
            that it may be; 1 does not limit it.
        max_queue_size: Requests that may wait for their first step; 0 is unlimited.
        per_request_processors: Accept sampling parameters per request. They are always accepted
            here, so both values mean the same.
        drop_unsupported_processors: Warn about options of the generation configuration that the
            sampler does not do, instead of raising.
        disable_nccl_graph_mixing: Tensor parallelism only.
        cpu_group_timeout: Tensor parallelism only, in seconds.
        use_default_compile_configs: Deprecated; True means default_compile_level=1.
        max_cached_graphs: Deprecated; has no effect.
        block_size: Deprecated; the old name of page_size.
        step_time_target: Not in the documentation. How long a step may take while requests stream,
            in seconds; prompts enter in pieces that keep to it. 0 does not limit it; None: 0.2 on a
            CPU, 0.05 on a GPU.
        max_draft_tokens: Not in the documentation. How many of a request's next tokens may be
            guessed, from what followed the same tokens before, and computed in one step; right ones
            save steps, no answer changes. As many are guessed as have lately paid. 0 guesses none.
        thread_niceness: Not in the documentation. How far the engine's thread, and those that
            compute for it, stand back behind the program's other threads when there are too few
            processors for all: 0 not at all, 19 the most; Linux only. An event loop that waits for
            the engine's thread makes each of its clients wait.
        kv_cache_dtype: Not in the documentation. How keys and values are kept: "fp32", "bf16",
            "fp16" or "int8"; "auto" is the dtype of the model, or "fp16" where activations are
            rounded to 8 bits. On a GPU there is no other than the model's.

    Source: the public documentation of transformers' class of the same name.
    """

    page_size: int = 256
    num_blocks: int | None = None
    max_batch_tokens: int | None = None
    max_memory_percent: float | None = None
    max_requests_per_batch: int | None = None
    max_blocks_per_request: int | None = None
    allow_block_sharing: bool = True
    use_async_batching: bool | None = None
    use_cuda_graph: bool | tuple[bool, bool] | None = None
    q_padding_interval_size: int = 0
    kv_padding_interval_size: int = 0
    varlen_compile_config: Any | None = None
    decode_compile_config: Any | None = None
    default_compile_level: int = 0
    scheduler_type: str = "fifo"
    safety_margin: float | None = None
    return_logprobs: bool = False
    seed: int | None = None
    auto_switch_to_flash: bool = True
    cpu_offload_space: float | None = 0.0
    cpu_offload_space_safety_threshold: float = 0.8
    max_queue_size: int = 0
    per_request_processors: bool = False
    drop_unsupported_processors: bool = True
    disable_nccl_graph_mixing: bool = True
    cpu_group_timeout: float | None = 300.0
    use_default_compile_configs: InitVar[bool | None] = None
    max_cached_graphs: InitVar[int | None] = None
    block_size: InitVar[int | None] = None
    step_time_target: float | None = None
    max_draft_tokens: int = 0
    thread_niceness: int = 2
    kv_cache_dtype: str = "auto"

    DEPRECATED_FIELDS: ClassVar[tuple[str, ...]] = (
        "use_default_compile_configs",
        "max_cached_graphs",
        "block_size",
    )

    def __post_init__(
        self,
        use_default_compile_configs: bool | None,
        max_cached_graphs: int | None,
        block_size: int | None,
    ) -> None:
        """Map deprecated names to current ones, with a warning each."""
        if use_default_compile_configs is not None:
            _warn("use_default_compile_configs", "use default_compile_level")
            self.default_compile_level = max(
                self.default_compile_level, int(use_default_compile_configs)
            )
        if max_cached_graphs is not None:
            _warn("max_cached_graphs", "it has no effect")
        if block_size is not None:
            _warn("block_size", "use page_size")
            self.page_size = block_size


@dataclass(frozen=True, slots=True)
class WorkloadHints:
    """What the caller knows of the work to come; 0 means unknown.

    Attributes:
        max_prompt_length: Longest prompt, in tokens.
        max_generated_length: Longest answer, in tokens.
        num_requests: How many requests there will be.
    """

    max_prompt_length: int = 0
    max_generated_length: int = 0
    num_requests: int = 0


def _warn(field: str, advice: str) -> None:
    warnings.warn(f"{field} is deprecated: {advice}", FutureWarning, stacklevel=4)
