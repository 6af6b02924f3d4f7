"""The documented configuration: same fields, same defaults, and none that is silently ignored."""

import dataclasses
import inspect
import warnings
from typing import Any

import pytest
import torch
import transformers

from engine import ContinuousBatchingConfig, UnsupportedConfigError, WorkloadHints
from engine.config_checks import REFUSED_FIELDS, check_config

CPU = torch.device("cpu")
DEPRECATED: dict[str, Any] = {
    "use_default_compile_configs": True,
    "max_cached_graphs": 3,
    "block_size": 32,
}
DOCUMENTED = inspect.signature(transformers.ContinuousBatchingConfig).parameters
# Fields that only ours has, after the documented ones.
OURS = ["step_time_target", "max_draft_tokens", "thread_niceness", "kv_cache_dtype"]
# Fields that something reads; tests/engine/test_resolve.py shows for each what it changes.
READ_FIELDS = {
    "page_size",
    "num_blocks",
    "max_batch_tokens",
    "max_memory_percent",
    "max_requests_per_batch",
    "max_blocks_per_request",
    "cpu_offload_space",
    "cpu_offload_space_safety_threshold",
    "step_time_target",
    "allow_block_sharing",
    "scheduler_type",
    "safety_margin",
    "return_logprobs",
    "seed",
    "auto_switch_to_flash",
    "max_draft_tokens",
    "thread_niceness",
    "kv_cache_dtype",
    "max_queue_size",
    "per_request_processors",
    "drop_unsupported_processors",
    "varlen_compile_config",
    "decode_compile_config",
    "default_compile_level",
}
WANTED_VALUES: dict[str, Any] = {
    "use_async_batching": True,
    "use_cuda_graph": (True, False),
    "q_padding_interval_size": 64,
    "kv_padding_interval_size": 64,
    "disable_nccl_graph_mixing": False,
    "cpu_group_timeout": None,
}


def test_there_are_29_documented_fields_and_ours_after_them():
    ours = inspect.signature(ContinuousBatchingConfig).parameters
    assert list(ours) == [*DOCUMENTED, *OURS]
    assert len(DOCUMENTED) == 29


@pytest.mark.parametrize("field", DOCUMENTED)
def test_a_field_has_its_documented_default(field):
    ours = inspect.signature(ContinuousBatchingConfig).parameters[field].default
    documented = DOCUMENTED[field].default
    assert ours == documented
    assert type(ours) is type(documented)


def test_each_field_is_read_or_refused_or_deprecated():
    every = READ_FIELDS | REFUSED_FIELDS.keys() | DEPRECATED.keys()
    assert every == {*DOCUMENTED, *OURS}
    assert WANTED_VALUES.keys() == REFUSED_FIELDS.keys()


def test_each_field_is_described():
    for field in [*DOCUMENTED, *OURS]:
        assert f"        {field}: " in str(ContinuousBatchingConfig.__doc__)


@pytest.mark.parametrize("field", WANTED_VALUES)
def test_a_field_whose_feature_is_not_there_is_refused_by_name(field):
    config = ContinuousBatchingConfig(**{field: WANTED_VALUES[field]})
    with pytest.raises(UnsupportedConfigError, match=f"^{field} is .*not supported") as caught:
        check_config(config, CPU)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_async_batching", False),
        ("use_cuda_graph", False),
        ("use_cuda_graph", (False, False)),
    ],
)
def test_turning_off_what_is_not_there_is_fine(field, value):
    check_config(ContinuousBatchingConfig(**{field: value}), CPU)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("page_size", 3),
        ("page_size", 16.0),
        ("page_size", None),
        ("page_size", True),
        ("num_blocks", 1),
        ("max_batch_tokens", 0),
        ("max_memory_percent", 0),
        ("max_memory_percent", 1.01),
        ("max_memory_percent", float("nan")),
        ("max_memory_percent", "half"),
        ("max_requests_per_batch", 0),
        ("max_blocks_per_request", -1),
        ("max_blocks_per_request", 1.0),
        ("cpu_offload_space", -1),
        ("cpu_offload_space", float("inf")),
        ("cpu_offload_space", True),
        ("cpu_offload_space_safety_threshold", 0),
        ("cpu_offload_space_safety_threshold", 1.1),
        ("cpu_offload_space_safety_threshold", None),
        ("step_time_target", -0.1),
        ("step_time_target", "fast"),
        ("max_draft_tokens", -1),
        ("max_draft_tokens", True),
        ("max_draft_tokens", None),
        ("thread_niceness", -1),
        ("thread_niceness", 20),
        ("thread_niceness", True),
        ("thread_niceness", None),
        ("kv_cache_dtype", "float32"),
        ("kv_cache_dtype", None),
        ("kv_cache_dtype", torch.int8),
        ("safety_margin", 1),
        ("safety_margin", -0.1),
        ("max_queue_size", -1),
        ("max_queue_size", None),
        ("seed", 1.5),
        ("seed", True),
        ("allow_block_sharing", None),
        ("allow_block_sharing", 1),
        ("return_logprobs", "yes"),
        ("auto_switch_to_flash", 0),
        ("per_request_processors", None),
        ("drop_unsupported_processors", None),
        ("default_compile_level", -1),
        ("default_compile_level", 4),
        ("default_compile_level", 1.0),
        ("default_compile_level", True),
        ("default_compile_level", None),
        ("scheduler_type", "lifo"),
        ("scheduler_type", None),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_it_may_be(field, value):
    config = ContinuousBatchingConfig(**{field: value})
    with pytest.raises(UnsupportedConfigError, match=f"^{field} is .*; it must be") as caught:
        check_config(config, CPU)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("page_size", 4),
        ("num_blocks", 2),
        ("max_batch_tokens", 1),
        ("max_memory_percent", 1),
        ("max_blocks_per_request", 0),
        ("cpu_offload_space", None),
        ("cpu_offload_space", 0),
        ("cpu_offload_space_safety_threshold", 1),
        ("step_time_target", 0),
        ("max_draft_tokens", 0),
        ("thread_niceness", 0),
        ("thread_niceness", 19),
        ("kv_cache_dtype", "auto"),
        ("kv_cache_dtype", "int8"),
        ("safety_margin", 0),
        ("safety_margin", 0.99),
        ("seed", -5),
        ("default_compile_level", 0),
        ("default_compile_level", 3),
        ("scheduler_type", "prefill_first"),
        ("scheduler_type", "priority"),
    ],
)
def test_values_at_the_edge_of_their_range_are_taken(field, value):
    check_config(ContinuousBatchingConfig(**{field: value}), CPU)


@pytest.mark.parametrize("field", DEPRECATED)
def test_a_deprecated_field_warns_where_it_is_set(field):
    with pytest.warns(FutureWarning, match=f"{field} is deprecated") as caught:
        ContinuousBatchingConfig(**{field: DEPRECATED[field]})
    assert caught[0].filename == __file__


def test_deprecated_fields_are_mapped_to_current_ones():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        config = ContinuousBatchingConfig(**DEPRECATED)
        unset = ContinuousBatchingConfig(use_default_compile_configs=False)
    assert (config.page_size, config.default_compile_level) == (32, 1)
    assert unset.default_compile_level == 0


def test_current_fields_alone_warn_of_nothing():
    ContinuousBatchingConfig(page_size=16, default_compile_level=2)


def test_workload_hints_default_to_unknown():
    assert dataclasses.astuple(WorkloadHints()) == (0, 0, 0)
    documented = inspect.signature(transformers.generation.continuous_batching.utils.WorkloadHints)
    assert list(inspect.signature(WorkloadHints).parameters) == list(documented.parameters)
