"""Refuses configuration values that are out of range or ask for what is not there, by name.

Pure. No field is accepted and ignored: either something reads it, or a value other than its
neutral one is refused here with a text that says why.
"""

import math
from collections.abc import Callable

import torch

from engine.cache.row_formats import KV_CACHE_DTYPES
from engine.config import ContinuousBatchingConfig
from engine.errors import UnsupportedConfigError
from engine.runners.compile_options import LEVELS
from engine.scheduler_kinds import SCHEDULERS

# Field -> (values that ask for nothing, what the others would need).
REFUSED_FIELDS: dict[str, tuple[tuple[object, ...], str]] = {
    "use_async_batching": ((None, False), "steps overlap on a GPU only, and there not yet"),
    "use_cuda_graph": (
        (None, False, (False, False)),
        "CUDA graphs need an NVIDIA GPU, and are not there yet",
    ),
    "q_padding_interval_size": ((0,), "it concerns CUDA graphs, which need an NVIDIA GPU"),
    "kv_padding_interval_size": ((0,), "it concerns CUDA graphs, which need an NVIDIA GPU"),
    "disable_nccl_graph_mixing": ((True,), "it concerns several GPUs, which are not there yet"),
    "cpu_group_timeout": ((300.0,), "it concerns several GPUs, which are not there yet"),
}


def _is_count(low: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and value >= low


def _is_fraction(*, zero: bool, one: bool) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            return False
        return (value > 0 or (zero and value == 0)) and (value < 1 or (one and value == 1))

    return check


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0


def _is_bool(value: object) -> bool:
    return type(value) is bool


# Field -> (what it must be, its test); None is allowed where it is the default.
_RANGES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "page_size": ("a whole number of at least 4", _is_count(4)),
    "num_blocks": ("a whole number of at least 2", _is_count(2)),
    "max_batch_tokens": ("a whole number of at least 1", _is_count(1)),
    "max_memory_percent": ("a share: above 0, at most 1", _is_fraction(zero=False, one=True)),
    "max_requests_per_batch": ("a whole number of at least 1", _is_count(1)),
    "max_blocks_per_request": ("a whole number of at least 0", _is_count(0)),
    "cpu_offload_space": ("a number of GiB, at least 0", _is_amount),
    "cpu_offload_space_safety_threshold": (
        "a share: above 0, at most 1",
        _is_fraction(zero=False, one=True),
    ),
    "step_time_target": ("a number of seconds, at least 0", _is_amount),
    "max_draft_tokens": ("a whole number of at least 0", _is_count(0)),
    "thread_niceness": (
        "a whole number from 0 to 19",
        lambda value: _is_count(0)(value) and value in range(20),
    ),
    "safety_margin": ("a share: at least 0, below 1", _is_fraction(zero=True, one=False)),
    "max_queue_size": ("a whole number of at least 0", _is_count(0)),
    "seed": ("a whole number", lambda value: type(value) is int),
    "allow_block_sharing": ("true or false", _is_bool),
    "return_logprobs": ("true or false", _is_bool),
    "auto_switch_to_flash": ("true or false", _is_bool),
    "per_request_processors": ("true or false", _is_bool),
    "drop_unsupported_processors": ("true or false", _is_bool),
    "default_compile_level": (
        "a whole number from 0 to 3",
        lambda value: _is_count(0)(value) and value in (0, *LEVELS),
    ),
    "kv_cache_dtype": (
        f"one of {', '.join(KV_CACHE_DTYPES)}",
        lambda value: value in KV_CACHE_DTYPES,
    ),
    "scheduler_type": (f"one of {', '.join(SCHEDULERS)}", lambda value: value in SCHEDULERS),
}
_OPTIONAL = frozenset(
    {
        "num_blocks",
        "max_batch_tokens",
        "max_memory_percent",
        "max_requests_per_batch",
        "max_blocks_per_request",
        "cpu_offload_space",
        "step_time_target",
        "safety_margin",
        "seed",
    }
)


def check_config(config: ContinuousBatchingConfig, device: torch.device) -> None:
    """Refuse what cannot be honoured.

    Raises:
        UnsupportedConfigError: Names the field, its value and what it may be.
    """
    for field, (expected, is_valid) in _RANGES.items():
        value = getattr(config, field)
        if not is_valid(value) and not (value is None and field in _OPTIONAL):
            raise UnsupportedConfigError(
                f"{field} is {value!r}; it must be {expected}", field=field
            )
    for field, (neutral, reason) in REFUSED_FIELDS.items():
        value = getattr(config, field)
        if value not in neutral:
            raise UnsupportedConfigError(
                f"{field} is {value!r}, which is not supported on {device.type} by this version: "
                f"{reason}; leave it at {neutral[0]!r}",
                field=field,
            )
