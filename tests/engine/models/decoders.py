"""Decoders of the structures that are one call, and of some that are not; steps to run."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from engine.attention.cpu import CpuBackend
from engine.attention.paged_attention import PagedAttention
from engine.batch import BatchInputs
from engine.cache.paged_cache import PagedCache
from engine.kernels.cpu.library import load_library
from engine.models.causal_lm import CausalLM
from engine.models.fused_decoder import FusedDecoder
from engine.models.probe import probe_geometry

PAGE = 4
SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "head_dim": 10,
}  # fmt: skip
NO_HEAD_DIM = {name: size for name, size in SIZES.items() if name != "head_dim"}
PATTERN = ["sliding_attention", "full_attention", "sliding_attention"]
SLIDING: dict[str, Any] = {"sliding_window": 5, "layer_types": PATTERN}
# Two tables that differ at every position but the first.
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
TWO_TABLES = {"full_attention": {**ROPE, "rope_theta": 500.0}, "sliding_attention": ROPE}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.2, 1.5, 2.0, 3.0], "long_factor": [2.0, 4.0, 8.0, 16.0, 32.0],
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 2.0,
}  # fmt: skip

Configs = dict[str, Callable[[], hf.PretrainedConfig]]
JOINED: Configs = {
    "llama": lambda: hf.LlamaConfig(**SIZES),
    "llama_biased": lambda: hf.LlamaConfig(**SIZES, attention_bias=True),
    "mistral_windowed": lambda: hf.MistralConfig(**SIZES, sliding_window=5),
    "qwen2": lambda: hf.Qwen2Config(**NO_HEAD_DIM),
    "qwen3": lambda: hf.Qwen3Config(**SIZES),
    "gemma": lambda: hf.GemmaConfig(**SIZES, hidden_act="gelu_pytorch_tanh"),
    "gemma2": lambda: hf.Gemma2Config(
        **SIZES, **SLIDING, query_pre_attn_scalar=8, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(**SIZES, **SLIDING, rope_parameters=TWO_TABLES),
    "phi3": lambda: hf.Phi3Config(**NO_HEAD_DIM, sliding_window=5),
    "phi3_partly_turned": lambda: hf.Phi3Config(
        **NO_HEAD_DIM, rope_parameters={**ROPE, "partial_rotary_factor": 0.4}
    ),
    "phi3_longrope": lambda: hf.Phi3Config(**NO_HEAD_DIM, rope_parameters=LONGROPE),
    "olmo2": lambda: hf.Olmo2Config(**NO_HEAD_DIM),
    "olmo3": lambda: hf.Olmo3Config(**NO_HEAD_DIM, **SLIDING),
    "exaone4": lambda: hf.Exaone4Config(**SIZES, **SLIDING),
    "granite": lambda: hf.GraniteConfig(**NO_HEAD_DIM, **GRANITE, attention_multiplier=0.5),
    "smollm3": lambda: hf.SmolLM3Config(**NO_HEAD_DIM, no_rope_layers=[1, 0, 1]),
    "olmo": lambda: hf.OlmoConfig(**NO_HEAD_DIM),
    "stablelm": lambda: hf.StableLmConfig(**NO_HEAD_DIM, use_qkv_bias=True),
    "mixtral": lambda: hf.MixtralConfig(**SIZES, num_local_experts=4),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **NO_HEAD_DIM, **EXPERTS, moe_intermediate_size=24, shared_expert_intermediate_size=56
    ),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        **SIZES, **EXPERTS, moe_intermediate_size=24, norm_topk_prob=True
    ),
    "qwen3_moe_partly_dense": lambda: hf.Qwen3MoeConfig(
        **SIZES, **EXPERTS, moe_intermediate_size=24, mlp_only_layers=[1]
    ),
    "olmoe": lambda: hf.OlmoeConfig(**NO_HEAD_DIM, **EXPERTS),
    "granite_moe": lambda: hf.GraniteMoeConfig(
        **NO_HEAD_DIM, **GRANITE, num_local_experts=4, num_experts_per_tok=2
    ),
    "flex_olmo": lambda: hf.FlexOlmoConfig(**NO_HEAD_DIM, **EXPERTS),
}
LEFT_ALONE: Configs = {
    "cohere": lambda: hf.CohereConfig(**NO_HEAD_DIM),
    "gelu_by_the_error_function": lambda: hf.LlamaConfig(**SIZES, hidden_act="gelu"),
    "glm4": lambda: hf.Glm4Config(**SIZES),
    "phi": lambda: hf.PhiConfig(**NO_HEAD_DIM),
    "glm4_moe": lambda: hf.Glm4MoeConfig(
        **SIZES, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
    ),
    "granite_moe_shared": lambda: hf.GraniteMoeSharedConfig(
        **NO_HEAD_DIM, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32
    ),
    "gpt_oss": lambda: hf.GptOssConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2, rope_parameters=ROPE
    ),
    "stablelm_in_parallel": lambda: hf.StableLmConfig(**NO_HEAD_DIM, use_parallel_residual=True),
}


def make_hf_model(config: hf.PretrainedConfig, **sizes: int) -> hf.PreTrainedModel:
    """Return a model whose weights let mistakes show; `sizes` are fields that it has to set."""
    for field, size in sizes.items():
        if hasattr(config, field):
            setattr(config, field, size)
    torch.manual_seed(0)
    model: hf.PreTrainedModel = hf.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    )
    for parameter in model.parameters():
        # Norms are made with weights that are all alike, which would hide a wrong one.
        torch.nn.init.normal_(parameter, mean=parameter.float().mean().item(), std=0.2)
    return model.requires_grad_(False)


def make(family: str) -> CausalLM:
    """Return a model of a family, taken over."""
    return CausalLM(make_hf_model((JOINED | LEFT_ALONE)[family]()))


def decoder_of(model):
    found = [part for part in model.in_place if isinstance(part, FusedDecoder)]
    assert len(found) <= 1
    return found[0] if found else None


def make_inputs(spans, tables):
    """Return a step of these (first position, count) of requests with these block tables."""
    positions = [p for first, count in spans for p in range(first, first + count)]
    rows = [row for row, (_, count) in enumerate(spans) for _ in range(count)]
    starts = [0]
    for _, count in spans:
        starts.append(starts[-1] + count)

    def integers(values):
        return torch.tensor(list(values), dtype=torch.int64)

    return BatchInputs(
        input_ids=integers((31 * p + 7 * row) % 97 for p, row in zip(positions, rows, strict=True))[
            None
        ],
        position_ids=integers(positions)[None],
        slots=integers(
            tables[row][p // PAGE] * PAGE + p % PAGE for p, row in zip(positions, rows, strict=True)
        ),
        block_table=torch.tensor(tables, dtype=torch.int32),
        query_starts=starts,
        context_lengths=[first + count for first, count in spans],
        sample_indices=integers(stop - 1 for stop in starts[1:]),
    )


def make_attention(model, backend_type=CpuBackend, dtype=torch.float32):
    geometry = probe_geometry(model)
    cache = PagedCache(
        geometry.layers,
        64,
        PAGE,
        dtype=dtype,
        device=torch.device("cpu"),
        heads_first=backend_type is CpuBackend,
    )
    library = load_library()
    assert library is not None
    backend = CpuBackend(PAGE, library) if backend_type is CpuBackend else backend_type(PAGE)
    return PagedAttention(cache, backend, geometry.layer_indices)


def run(model, attention, inputs):
    attention.begin_step(inputs)
    return model.forward(inputs.input_ids, inputs.position_ids, inputs.sample_indices, attention)


# One request's blocks lie among the others'.
TABLES = [[3, 17, 40, 5, 6], [8, 2, 33, 9, 60], [50, 1, 0, 30, 31]]
STEPS = [
    [(0, 9), (0, 1), (0, 14)],
    [(9, 1), (1, 1), (14, 1)],
    [(10, 1), (2, 13), (15, 1)],
    [(11, 1), (15, 1), (16, 1)],
]


def run_all(model):
    attention = make_attention(model)
    return torch.cat([run(model, attention, make_inputs(spans, TABLES)) for spans in STEPS])
