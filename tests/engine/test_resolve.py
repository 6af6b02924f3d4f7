"""From what a user set to numbers: each setting that is read changes one of them."""

import logging
from types import SimpleNamespace

import pytest
import torch
from transformers import CompileConfig, GenerationConfig

from engine import (
    CacheTooSmallError,
    ContinuousBatchingConfig,
    UnsupportedConfigError,
    WorkloadHints,
    cache_budget,
    resolve,
)
from engine import manager as manager_module
from engine.attention import select_backend
from engine.attention.select_backend import BackendChoice
from engine.resolve import resolve_config
from engine.runners.compile_options import compile_options, preset
from engine.sampling.parameters import default_processes_logits
from tests.engine.test_config import READ_FIELDS

GIB = 1 << 30
EAGER = CompileConfig(backend="eager")
GPU_MODEL = {
    "device": torch.device("cuda"), "dtype": torch.float32, "vocab_size": 199, "use_kernels": False,
    "text_config": SimpleNamespace(hidden_size=32, intermediate_size=64), "max_model_tokens": 512,
    "has_int8_activations": False,
}  # fmt: skip


@pytest.fixture
def memory(monkeypatch):
    """A machine with 1 GiB to give; the test may change it."""
    memory = SimpleNamespace(available=GIB)
    monkeypatch.setattr(cache_budget, "available_bytes", lambda device: memory.available)
    return memory


@pytest.fixture
def resolved(tiny_model, memory):
    """A function from fields of the configuration to resolved numbers."""

    def resolve_fields(hints=WorkloadHints(), **fields):  # noqa: B008 - frozen
        config = ContinuousBatchingConfig(**fields)
        return resolve_config(config, hints, tiny_model.causal_lm, tiny_model.geometry)

    resolve_fields.model = tiny_model.causal_lm  # type: ignore[attr-defined]
    resolve_fields.geometry = tiny_model.geometry  # type: ignore[attr-defined]
    return resolve_fields


# Field -> (value to set, what it changes, what that becomes).
EFFECTS = {
    "page_size": (32, "page_size", 32),
    "num_blocks": (7, "num_blocks", 7),
    "max_batch_tokens": (33, "max_batch_tokens", 33),
    "max_requests_per_batch": (5, "max_requests_per_batch", 5),
    "allow_block_sharing": (False, "allow_block_sharing", False),
    "scheduler_type": ("prefill_first", "scheduler_type", "prefill_first"),
    "return_logprobs": (True, "return_logprobs", True),
    "seed": (11, "seed", 11),
    "max_queue_size": (9, "max_queue_size", 9),
    "step_time_target": (0.5, "step_time_target", 0.5),
    "max_draft_tokens": (6, "max_draft_tokens", 6),
    "thread_niceness": (7, "thread_niceness", 7),
    "kv_cache_dtype": ("bf16", "kv_cache_dtype", torch.bfloat16),
    "default_compile_level": (1, "varlen_compile", preset(1)),
    "varlen_compile_config": (EAGER, "varlen_compile", compile_options("", EAGER)),
    "decode_compile_config": (EAGER, "decode_compile", compile_options("", EAGER)),
}
ELSEWHERE = {
    "max_memory_percent": "test_the_cache_takes_its_share_of_the_memory",
    "max_blocks_per_request": "test_the_block_table_is_wide_where_a_decode_path_wants_it",
    "cpu_offload_space": "test_the_host_buffer_is_as_large_as_asked_for",
    "cpu_offload_space_safety_threshold": "test_the_threshold_bounds_the_host_buffer",
    "safety_margin": "test_the_safety_margin_keeps_blocks_from_new_requests",
    "auto_switch_to_flash": "test_flash_is_taken_only_where_it_is_allowed",
    "per_request_processors": "test_requests_have_parameters_of_their_own_either_way",
    "drop_unsupported_processors": "test_unsupported_processors_are_dropped_or_refused",
}


def test_each_field_that_is_read_has_its_effect_shown():
    assert EFFECTS.keys() | ELSEWHERE.keys() == READ_FIELDS
    assert set(ELSEWHERE.values()) <= globals().keys()


@pytest.mark.parametrize("field", EFFECTS)
def test_a_field_has_its_effect(field, resolved):
    value, changed, expected = EFFECTS[field]
    assert getattr(resolved(), changed) != expected
    assert getattr(resolved(**{field: value}), changed) == expected


def test_the_cache_takes_its_share_of_the_memory(resolved, memory):
    default = resolved()
    assert default.cache_bytes == pytest.approx(0.6 * GIB, rel=0.1)
    assert resolved(max_memory_percent=0.3).cache_bytes < 0.55 * default.cache_bytes
    memory.available = 2 * GIB
    assert resolved().num_blocks > 1.9 * default.num_blocks


GENERATION_CONFIGS = {
    # name: (configuration, whether its requests process their logits)
    "nothing": (GenerationConfig(), False),
    "greedy": (GenerationConfig(do_sample=False, temperature=0.7), False),
    "draws as the model says": (GenerationConfig(do_sample=True, top_k=0), False),
    "draws of the best 50": (GenerationConfig(do_sample=True), True),
    "temperature": (GenerationConfig(do_sample=True, top_k=0, temperature=0.7), True),
    "top_p": (GenerationConfig(do_sample=True, top_k=0, top_p=0.9), True),
    "min_p": (GenerationConfig(do_sample=True, top_k=0, min_p=0.1), True),
    "penalty": (GenerationConfig(repetition_penalty=1.1), True),
    "n-grams": (GenerationConfig(no_repeat_ngram_size=2), True),
    "shortest": (GenerationConfig(min_new_tokens=1, eos_token_id=1), True),
    "not to be read": (GenerationConfig(stop_strings=["a"]), True),
}


@pytest.mark.parametrize("name", GENERATION_CONFIGS)
def test_the_default_share_on_a_gpu_depends_on_logit_processing(
    name, monkeypatch, tiny_model, memory
):
    config, expected = GENERATION_CONFIGS[name]
    assert default_processes_logits(config, vocab_size=199) is expected
    shares = []

    def note(config, memory, reasons):
        shares.append(memory.fraction)
        return 8

    monkeypatch.setattr(resolve, "resolve_blocks", note)
    model = SimpleNamespace(**GPU_MODEL)
    for fields in ({}, {"per_request_processors": True}, {"max_memory_percent": 0.25}):
        resolve_config(
            ContinuousBatchingConfig(**fields),
            WorkloadHints(),
            model,  # type: ignore[arg-type]
            tiny_model.geometry,
            processes_logits=expected,
        )
    assert shares == [0.8 if expected else 0.9, 0.8, 0.25]


def test_a_manager_looks_at_its_generation_configuration(monkeypatch, tiny_model):
    seen = []

    def note(*arguments, **options):
        seen.append(options["processes_logits"])
        return resolve_config(*arguments, **options)

    monkeypatch.setattr(manager_module, "resolve_config", note)
    small = ContinuousBatchingConfig(num_blocks=8)
    for config in (GenerationConfig(), GenerationConfig(repetition_penalty=1.1)):
        tiny_model.init_continuous_batching(config, small).destroy()
    assert seen == [False, True]


def test_num_blocks_and_a_share_of_the_memory_must_agree(resolved, memory):
    """The number is the size and the share its bound; what cannot be both is refused."""
    block_bytes = resolved(num_blocks=8).cache_bytes // 8
    alone = GIB // block_bytes
    assert resolved(num_blocks=alone).num_blocks == alone
    reserved = cache_budget.step_bytes(resolved.model, 256, 256)
    most = (GIB // 2 - reserved) // block_bytes
    both = resolved(num_blocks=most, max_memory_percent=0.5)
    assert both.num_blocks == most
    assert "within 50% of the memory" in both.reasons["num_blocks"]
    with pytest.raises(CacheTooSmallError, match=r"num_blocks .* max_memory_percent is 0.5"):
        resolved(num_blocks=most + 1, max_memory_percent=0.5)
    fits = resolved(max_memory_percent=0.5).num_blocks
    assert most - 1 <= fits <= most


def test_the_safety_margin_keeps_blocks_from_new_requests(resolved):
    assert resolved(num_blocks=100).num_reserved_blocks == 15
    assert resolved(num_blocks=100, scheduler_type="prefill_first").num_reserved_blocks == 0
    assert resolved(num_blocks=100, safety_margin=0.5).num_reserved_blocks == 50
    assert resolved(num_blocks=100, safety_margin=0).num_reserved_blocks == 0


def test_the_host_buffer_is_as_large_as_asked_for(resolved):
    block_bytes = resolved(num_blocks=8).cache_bytes // 8
    assert resolved(num_blocks=8).num_host_blocks == 0
    asked = resolved(num_blocks=8, cpu_offload_space=20 * block_bytes / GIB)
    assert asked.num_host_blocks == 20
    automatic = resolved(num_blocks=8, cpu_offload_space=None)
    assert automatic.num_host_blocks == 8
    rows = {name: (value, reason) for name, value, reason in automatic.describe()}
    assert rows["num_host_blocks"] == ("8", "as many as in the cache")


def test_the_threshold_bounds_the_host_buffer(resolved, caplog):
    """On a CPU the buffer shares the memory with the cache."""
    default = resolved(cpu_offload_space=None)
    block_bytes = default.cache_bytes // default.num_blocks
    left = GIB - default.cache_bytes
    assert default.num_host_blocks == int(0.8 * left) // block_bytes
    half = resolved(cpu_offload_space=4.0, cpu_offload_space_safety_threshold=0.5)
    assert half.num_host_blocks == int(0.5 * left) // block_bytes
    assert "cpu_offload_space is cut from" in caplog.text
    unbounded = resolved(cpu_offload_space=4.0, cpu_offload_space_safety_threshold=1.0)
    assert unbounded.num_host_blocks == 4 * GIB // block_bytes


def test_a_cache_that_takes_all_memory_leaves_none_to_swap_to(resolved, memory):
    resolved()
    memory.available = 9 * resolved(num_blocks=8).cache_bytes // 8
    assert resolved(num_blocks=9, cpu_offload_space=1.0).num_host_blocks == 0


def test_the_block_table_is_wide_where_a_decode_path_wants_it(resolved, monkeypatch):
    assert resolved(max_blocks_per_request=8).max_blocks_per_request == 0
    monkeypatch.setattr(
        resolve, "choose_backend", lambda *args, **options: BackendChoice("flash", "for the test")
    )
    long = WorkloadHints(max_prompt_length=300, max_generated_length=212)
    assert resolved().max_blocks_per_request == 32
    assert resolved(hints=long).max_blocks_per_request == 4  # 2 pages and one more, made even
    assert resolved(hints=long, page_size=64).max_blocks_per_request == 10
    assert resolved(hints=long, max_blocks_per_request=7).max_blocks_per_request == 7
    assert resolved(max_blocks_per_request=0).max_blocks_per_request == 0


def test_smaller_rows_make_more_blocks_of_the_same_memory(resolved):
    """With heads of 8 numbers a row of 8 bits is 12 bytes and one of fp32 is 32."""
    assert {layer.key_dim for layer in resolved.geometry.layers} == {8}
    blocks = {
        name: resolved(kv_cache_dtype=name).num_blocks for name in ("auto", "fp32", "fp16", "int8")
    }
    assert blocks["auto"] == blocks["fp32"]
    assert blocks["fp16"] == pytest.approx(2 * blocks["fp32"], abs=1)
    assert blocks["int8"] == pytest.approx(32 / 12 * blocks["fp32"], abs=2)


def test_keys_and_values_lose_less_than_activations_do(memory, tiny_model):
    """`auto` is half of the memory where activations are rounded to 8 bits, and only there."""
    model = SimpleNamespace(
        **GPU_MODEL | {"device": torch.device("cpu"), "has_int8_activations": True}
    )

    def resolved_rows(**fields):
        config = ContinuousBatchingConfig(**fields)
        return resolve_config(config, WorkloadHints(), model, tiny_model.geometry)  # type: ignore[arg-type]

    chosen = resolved_rows()
    assert chosen.kv_cache_dtype == torch.float16
    reason = next(why for name, _, why in chosen.describe() if name == "kv_cache_dtype")
    assert reason == "activations of 8 bits lose far more than it does"
    assert resolved_rows(kv_cache_dtype="fp32").kv_cache_dtype == torch.float32
    model.has_int8_activations = False
    assert resolved_rows().kv_cache_dtype == torch.float32


def test_a_gpu_keeps_keys_and_values_in_the_dtype_of_the_model(memory, tiny_model):
    model = SimpleNamespace(**GPU_MODEL)
    for name, accepted in (("auto", True), ("fp32", True), ("int8", False), ("bf16", False)):
        config = ContinuousBatchingConfig(kv_cache_dtype=name)
        if accepted:
            resolve_config(config, WorkloadHints(), model, tiny_model.geometry)  # type: ignore[arg-type]
            continue
        with pytest.raises(UnsupportedConfigError, match=r"on cuda .* the model's own dtype, fp32"):
            resolve_config(config, WorkloadHints(), model, tiny_model.geometry)  # type: ignore[arg-type]


def test_the_step_time_target_can_be_turned_off(resolved):
    assert resolved().step_time_target > 0
    off = resolved(step_time_target=0)
    assert off.step_time_target == 0.0
    assert ("step_time_target", "unlimited", "as set") in off.describe()


def test_flash_is_taken_only_where_it_is_allowed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())

    def choice(allow, device="cuda", dtype=torch.bfloat16, page_size=256, sinks=False):
        return select_backend.choose_backend(
            torch.device(device), dtype, page_size, allow_flash=allow, has_sinks=sinks
        )

    assert choice(True).name == "flash"
    for refused in (
        choice(False),
        choice(True, device="cpu"),
        choice(True, dtype=torch.float32),
        choice(True, page_size=16),
        choice(True, sinks=True),
    ):
        assert refused.name == "torch"
        assert refused.reason


@pytest.mark.parametrize("per_request", [True, False])
def test_requests_have_parameters_of_their_own_either_way(per_request, make_manager):
    manager = make_manager(per_request_processors=per_request)
    manager.start()
    manager.add_request([1, 2], "greedy", max_new_tokens=6, temperature=0.0)
    manager.add_request([1, 2], "random", max_new_tokens=6, temperature=50.0, seed=1)
    outputs = {output.request_id: output.generated_tokens for output in manager}
    assert outputs["greedy"] != outputs["random"]


def test_unsupported_processors_are_dropped_or_refused(tiny_model, caplog):
    generation = GenerationConfig(num_beams=2, eos_token_id=None)
    strict = ContinuousBatchingConfig(num_blocks=8, drop_unsupported_processors=False)
    with pytest.raises(UnsupportedConfigError, match="num_beams"):
        tiny_model.init_continuous_batching(generation, strict)
    with caplog.at_level(logging.WARNING):
        tiny_model.init_continuous_batching(generation, ContinuousBatchingConfig(num_blocks=8))
    assert "num_beams" in caplog.text


def test_hints_bound_the_requests_but_do_not_overrule_a_setting(resolved):
    few = WorkloadHints(num_requests=3)
    assert resolved().max_requests_per_batch == 256
    assert resolved(hints=few).max_requests_per_batch == 3
    assert resolved(hints=few, max_requests_per_batch=8).max_requests_per_batch == 8
    assert resolved(hints=WorkloadHints(num_requests=9999)).max_requests_per_batch == 256


def test_each_running_request_has_a_token_in_every_step(resolved):
    """With more requests than tokens, the oldest could be left out of a step."""
    assert resolved(max_batch_tokens=4, max_requests_per_batch=9).max_requests_per_batch == 4
    assert resolved(max_batch_tokens=2000).max_requests_per_batch == 1024


def test_a_request_may_use_what_both_the_model_and_the_cache_hold(resolved):
    assert resolved(num_blocks=3, page_size=16).max_model_tokens == 48
    assert resolved(num_blocks=100, page_size=16).max_model_tokens == 512


def test_more_blocks_than_the_memory_holds_are_refused_with_the_numbers(resolved):
    with pytest.raises(CacheTooSmallError, match=r"num_blocks is 1000000.*1,073,741,824"):
        resolved(num_blocks=1_000_000)


def test_a_memory_that_holds_no_two_blocks_is_refused(resolved, memory):
    memory.available = 10_000
    with pytest.raises(CacheTooSmallError):
        resolved()


def test_a_bad_value_is_refused_before_the_memory_is_asked_for(resolved, monkeypatch):
    monkeypatch.setattr(cache_budget, "available_bytes", lambda device: pytest.fail("asked"))
    with pytest.raises(UnsupportedConfigError):
        resolved(page_size=1)


def test_the_table_names_each_number_with_its_reason(resolved):
    rows = {name: (value, reason) for name, value, reason in resolved(num_blocks=7).describe()}
    assert rows["num_blocks"] == ("7 (1,792 tokens)", "as set")
    assert rows["max_queue_size"][0] == "unlimited"
    assert rows["seed"][0] == "random"
    assert rows["max_batch_tokens"] == ("256 tokens", "default on cpu")
    assert rows["max_model_tokens"] == ("512 tokens", "the model's positions")
    assert all(value and reason for value, reason in rows.values())


def test_the_users_configuration_is_not_changed(tiny_model):
    config = ContinuousBatchingConfig(num_blocks=8)
    tiny_model.init_continuous_batching(continuous_batching_config=config)
    assert config == ContinuousBatchingConfig(num_blocks=8)
